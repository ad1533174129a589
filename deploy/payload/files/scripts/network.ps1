# Waits for the overlay network that hybrid-overlay-node makes, writes the CNI configuration for it, and prints
# the one thing that kube-proxy needs: the address from which it sends.
$ErrorActionPreference = 'Stop'
Import-Module C:\k\scripts\hns.psm1

$name = 'OVNKubernetesHybridOverlayNetwork'
$until = (Get-Date).AddMinutes(4)
while (-not ($network = Get-Network $name)) {
    if ((Get-Date) -gt $until) { throw "there is no network $name after 4 minutes: does hybrid-overlay-node run?" }
    Start-Sleep -Seconds 2
}

$subnet = ($network.Subnets | Select-Object -First 1).AddressPrefix
# All pod networks of the cluster: those to which the overlay leads.
$networks = ($network.Policies | Where-Object Type -eq 'HostRoute' | Select-Object -First 1).DestinationPrefix
if (-not $networks) { $networks = $subnet }

$config = Get-Content -Raw C:\k\cni\overlay.json
$config = $config.Replace('NODE_SUBNET', $subnet).Replace('CLUSTER_NETWORKS', $networks)
New-Item -ItemType Directory -Force C:\k\cni\config | Out-Null
# In one step: containerd reads the folder whenever it changes.
Set-Content -NoNewline -Path C:\k\cni\config\cni.conf.new -Value $config
Move-Item -Force C:\k\cni\config\cni.conf.new C:\k\cni\config\cni.conf

(Get-HostEndpoint $network 'EvenkeelSourceVip').IPAddress
