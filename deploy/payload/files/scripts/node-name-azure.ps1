# Prints what the Node of this machine is called: the name of the virtual machine, by which Azure's cloud provider looks for the Node.
& C:\k\evenkeel-agent.exe node-name --platform azure
exit $LASTEXITCODE
