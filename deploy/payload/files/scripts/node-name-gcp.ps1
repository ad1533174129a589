# Prints what the Node of this machine is called: the name of the instance, by which Google's cloud provider looks for the Node.
& C:\k\evenkeel-agent.exe node-name --platform gcp
exit $LASTEXITCODE
