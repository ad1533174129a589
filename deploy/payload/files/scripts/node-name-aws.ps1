# Prints what the Node of this machine is called: the private DNS name that Amazon gave it, by which its cloud provider looks for the Node.
& C:\k\evenkeel-agent.exe node-name --platform aws
exit $LASTEXITCODE
