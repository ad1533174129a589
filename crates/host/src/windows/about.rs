//! What a machine says about itself: its name, its addresses, its version of Windows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, ERROR_NO_DATA};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GAA_FLAG_SKIP_ANYCAST, GAA_FLAG_SKIP_DNS_SERVER, GAA_FLAG_SKIP_MULTICAST, GetAdaptersAddresses,
    IP_ADAPTER_ADDRESSES_LH,
};
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, AF_INET6, AF_UNSPEC, SOCKADDR, SOCKADDR_IN, SOCKADDR_IN6,
};

use super::registry::{Key, Value};
use crate::{Error, Result};

/// The name of this computer.
pub fn computer_name() -> Result<String> {
    const KEY: &str = r"SYSTEM\CurrentControlSet\Control\ComputerName\ActiveComputerName";
    match text(KEY, "ComputerName")? {
        Some(name) => Ok(name),
        None => std::env::var("COMPUTERNAME").map_err(|_| {
            let none = std::io::ErrorKind::NotFound;
            Error::path("read", "the computer name", none)
        }),
    }
}

/// The name of this computer in the network, which may be longer than the 15 letters of its computer name: the one that
/// programs get who ask for the host name, kubelets among them.
pub fn host_name() -> Result<String> {
    const KEY: &str = r"SYSTEM\CurrentControlSet\Services\Tcpip\Parameters";
    let name = match text(KEY, "NV Hostname")? {
        Some(name) => Some(name),
        None => text(KEY, "Hostname")?,
    };
    match name.filter(|name| !name.is_empty()) {
        Some(name) => Ok(name),
        None => computer_name(),
    }
}

/// The product and its build: `Windows Server 2022 Datacenter`, `20348`.
pub fn windows_version() -> Result<(String, String)> {
    const KEY: &str = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion";
    let product = text(KEY, "ProductName")?.unwrap_or_default();
    Ok((
        product,
        text(KEY, "CurrentBuildNumber")?.unwrap_or_default(),
    ))
}

fn text(key: &str, name: &str) -> Result<Option<String>> {
    let Some(key) = Key::read(key)? else {
        return Ok(None);
    };
    Ok(match key.value(name)? {
        Some(Value::Text(text) | Value::Expands(text)) => Some(text),
        _ => None,
    })
}

/// The addresses of this machine, loopback apart.
pub fn addresses() -> Result<Vec<IpAddr>> {
    let flags = GAA_FLAG_SKIP_ANYCAST | GAA_FLAG_SKIP_MULTICAST | GAA_FLAG_SKIP_DNS_SERVER;
    let mut room = 16 * 1024_u32;
    let buffer = loop {
        let mut buffer = vec![0_u64; (room as usize).div_ceil(8)];
        // SAFETY: the buffer has `room` bytes and is aligned for what is written to it.
        let code = unsafe {
            GetAdaptersAddresses(
                AF_UNSPEC.into(),
                flags,
                std::ptr::null(),
                buffer.as_mut_ptr().cast(),
                &raw mut room,
            )
        };
        match code {
            0 => break buffer,
            ERROR_NO_DATA => return Ok(Vec::new()),
            ERROR_BUFFER_OVERFLOW => {}
            code => {
                let said = std::io::Error::from_raw_os_error(code.cast_signed());
                return Err(Error::path("list", "the addresses of this machine", said));
            }
        }
    };
    let mut addresses = Vec::new();
    let mut adapter: *const IP_ADAPTER_ADDRESSES_LH = buffer.as_ptr().cast();
    // SAFETY: both lists are in the buffer, which outlives the loop, and end with null.
    unsafe {
        while !adapter.is_null() {
            let mut unicast = (*adapter).FirstUnicastAddress;
            while !unicast.is_null() {
                addresses.extend(address((*unicast).Address.lpSockaddr));
                unicast = (*unicast).Next;
            }
            adapter = (*adapter).Next;
        }
    }
    addresses.retain(|address| !address.is_loopback());
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

/// The address at `at`.
///
/// # Safety
///
/// `at` points to a socket address, which is as long as its family says.
unsafe fn address(at: *const SOCKADDR) -> Option<IpAddr> {
    // SAFETY: the caller promises it.
    unsafe {
        match (*at).sa_family {
            AF_INET => {
                let bits = at.cast::<SOCKADDR_IN>().read_unaligned().sin_addr;
                let bits = bits.S_un.S_addr;
                Some(Ipv4Addr::from(u32::from_be(bits)).into())
            }
            AF_INET6 => {
                let bytes = at.cast::<SOCKADDR_IN6>().read_unaligned().sin6_addr;
                Some(Ipv6Addr::from(bytes.u.Byte).into())
            }
            _ => None,
        }
    }
}
