# The Host Networking Service, asked directly: a network or an endpoint is an object with an ID.
Add-Type -Namespace Evenkeel -Name Hns -MemberDefinition @'
[System.Runtime.InteropServices.DllImport("vmcompute.dll")]
public static extern void HNSCall(
    [System.Runtime.InteropServices.MarshalAs(System.Runtime.InteropServices.UnmanagedType.LPWStr)] string method,
    [System.Runtime.InteropServices.MarshalAs(System.Runtime.InteropServices.UnmanagedType.LPWStr)] string path,
    [System.Runtime.InteropServices.MarshalAs(System.Runtime.InteropServices.UnmanagedType.LPWStr)] string request,
    [System.Runtime.InteropServices.MarshalAs(System.Runtime.InteropServices.UnmanagedType.LPWStr)] out string response);
'@

# Asks, and returns what is answered. An answer that is no success ends the script.
function Invoke-Hns([string]$Method, [string]$Path, [string]$Request = '') {
    $answer = ''
    [Evenkeel.Hns]::HNSCall($Method, $Path, $Request, [ref]$answer)
    $read = $answer | ConvertFrom-Json
    if (-not $read.Success) { throw "HNS: $Method ${Path}: $($read.Error)" }
    $read.Output
}

function Get-Network([string]$Name) {
    Invoke-Hns GET '/networks/' | Where-Object Name -eq $Name | Select-Object -First 1
}

function Get-Endpoint([string]$Name) {
    Invoke-Hns GET '/endpoints/' | Where-Object Name -eq $Name | Select-Object -First 1
}

# An endpoint of the machine itself in a network; one that is there already is returned.
function Get-HostEndpoint($Network, [string]$Name) {
    $endpoint = Get-Endpoint $Name
    if (-not $endpoint) {
        $request = @{ Name = $Name; VirtualNetwork = $Network.ID } | ConvertTo-Json -Compress
        $endpoint = Invoke-Hns POST '/endpoints/' $request
        $attach = @{ SystemType = 'Host'; CompartmentId = 1 } | ConvertTo-Json -Compress
        Invoke-Hns POST "/endpoints/$($endpoint.ID)/attach" $attach | Out-Null
        $endpoint = Get-Endpoint $Name
    }
    $endpoint
}

Export-ModuleMember -Function Get-Network, Get-HostEndpoint
