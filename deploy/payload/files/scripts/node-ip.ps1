# Prints the address of this machine from which it reaches the API server: the one that its Node is to have, whatever
# other networks there are.
& C:\k\evenkeel-agent.exe node-ip --kubeconfig C:\k\bootstrap-kubeconfig
exit $LASTEXITCODE
