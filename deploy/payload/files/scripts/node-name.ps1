# Prints what the Node of this machine is called: the machine's own host name, in small letters. For machines on no cloud, and
# on vSphere.
& C:\k\evenkeel-agent.exe node-name
exit $LASTEXITCODE
