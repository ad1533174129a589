//! The machine's store of trusted roots.

use std::io::Write;
use std::time::{Duration, Instant};

use evenkeel_testbed::{Doing, Error, Result};
use windows_sys::Win32::Security::Cryptography::{
    CERT_CONTEXT, CERT_SHA1_HASH_PROP_ID, CERT_STORE_ADD_REPLACE_EXISTING, CERT_STORE_CTRL_COMMIT,
    CERT_STORE_PROV_SYSTEM_W, CERT_SYSTEM_STORE_LOCAL_MACHINE, CertAddEncodedCertificateToStore,
    CertCloseStore, CertControlStore, CertDeleteCertificateFromStore, CertEnumCertificatesInStore,
    CertFreeCertificateContext, CertGetCertificateContextProperty, CertOpenStore, HCERTSTORE,
    X509_ASN_ENCODING,
};

use crate::registry;

/// How long a certificate may take to be trusted.
const PATIENCE: Duration = Duration::from_secs(100);

struct Roots(HCERTSTORE);

impl Roots {
    fn open() -> Result<Self> {
        let name: Vec<u16> = "ROOT".encode_utf16().chain([0]).collect();
        // SAFETY: the provider wants a name that ends with a zero, which outlives the call.
        let store = unsafe {
            CertOpenStore(
                CERT_STORE_PROV_SYSTEM_W,
                0,
                0,
                CERT_SYSTEM_STORE_LOCAL_MACHINE,
                name.as_ptr().cast(),
            )
        };
        if store.is_null() {
            return Err(last_error("cannot open the store of trusted roots"));
        }
        Ok(Self(store))
    }
}

impl Drop for Roots {
    fn drop(&mut self) {
        // SAFETY: the store was opened by us and is closed once.
        unsafe {
            CertCloseStore(self.0, 0);
        }
    }
}

pub(crate) fn roots() -> Result<String> {
    let store = Roots::open()?;
    let mut thumbprints = Vec::new();
    let mut certificate = std::ptr::null_mut();
    loop {
        // SAFETY: the store is open; the last certificate goes back to be freed by the call.
        certificate = unsafe { CertEnumCertificatesInStore(store.0, certificate) };
        if certificate.is_null() {
            break;
        }
        let mut hash = [0_u8; 20];
        let mut length = 20;
        // SAFETY: `hash` has room for the 20 bytes that `length` says.
        let done = unsafe {
            CertGetCertificateContextProperty(
                certificate,
                CERT_SHA1_HASH_PROP_ID,
                hash.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if done == 0 {
            return Err(last_error("a trusted root has no thumbprint"));
        }
        let digits = hash.iter().flat_map(|it| [it >> 4, it & 15]);
        let digits = digits.filter_map(|it| char::from_digit(it.into(), 16));
        thumbprints.push(digits.collect::<String>());
    }
    thumbprints.sort();
    Ok(thumbprints.join("\n"))
}

/// Reaches the world outside as any program of this machine would: through the proxy of its environment, and trusting
/// whom the machine trusts.
pub(crate) fn reach_world() -> Result<String> {
    let proxy = std::env::var("HTTPS_PROXY").doing(|| "there is no HTTPS_PROXY")?;
    let store = Roots::open()?;
    let mut roots = Vec::new();
    let mut certificate = std::ptr::null_mut();
    loop {
        // SAFETY: the store is open; the last certificate goes back to be freed by the call.
        certificate = unsafe { CertEnumCertificatesInStore(store.0, certificate) };
        if certificate.is_null() {
            return evenkeel_testbed::world::ask_world(&proxy, roots);
        }
        // SAFETY: a certificate's encoded form is as long as it says, and lives as long as it.
        let encoded = unsafe {
            let context = &*certificate;
            std::slice::from_raw_parts(context.pbCertEncoded, context.cbCertEncoded as usize)
        };
        roots.push(encoded.to_vec());
    }
}

pub(crate) fn add(file: &str) -> Result<String> {
    let bytes = std::fs::read(file).doing(|| format!("cannot read {file}"))?;
    let length = u32::try_from(bytes.len()).doing(|| format!("{file} is too long"))?;
    let store = Roots::open()?;
    // SAFETY: `bytes` is `length` long; no context is asked for in return.
    let done = unsafe {
        CertAddEncodedCertificateToStore(
            store.0,
            X509_ASN_ENCODING,
            bytes.as_ptr(),
            length,
            CERT_STORE_ADD_REPLACE_EXISTING,
            std::ptr::null_mut(),
        )
    };
    if done == 0 {
        return Err(last_error(&format!("cannot trust {file}")));
    }
    Ok("trusted".to_owned())
}

/// The certificate of the store that a file holds; null if it is not there. Whoever asks frees it.
fn find(store: &Roots, bytes: &[u8]) -> *mut CERT_CONTEXT {
    let mut certificate = std::ptr::null_mut();
    loop {
        // SAFETY: the store is open; the last certificate goes back to be freed by the call.
        certificate = unsafe { CertEnumCertificatesInStore(store.0, certificate) };
        if certificate.is_null() {
            return certificate;
        }
        // SAFETY: a certificate's encoded form is as long as it says, and lives as long as it.
        let encoded = unsafe {
            let context = &*certificate;
            std::slice::from_raw_parts(context.pbCertEncoded, context.cbCertEncoded as usize)
        };
        if encoded == bytes {
            return certificate;
        }
    }
}

/// Whether the certificate of a file is among the trusted roots.
pub(crate) fn is_trusted(file: &str) -> Result<bool> {
    let bytes = std::fs::read(file).doing(|| format!("cannot read {file}"))?;
    let store = Roots::open()?;
    let found = find(&store, &bytes);
    // SAFETY: null is fine, and anything else is freed once.
    unsafe {
        CertFreeCertificateContext(found);
    }
    Ok(!found.is_null())
}

/// Waits until a certificate is trusted, and says when that was.
pub(crate) fn wait_for(file: &str) -> Result<String> {
    let start = Instant::now();
    let mut is_there = is_trusted(file)?;
    println!("watching");
    std::io::stdout().flush().ok();
    while !is_there {
        if start.elapsed() > PATIENCE {
            return Err(Error::failed(format!("{file} is not trusted")));
        }
        std::thread::sleep(Duration::from_millis(1));
        is_there = is_trusted(file)?;
    }
    Ok(registry::now())
}

/// Takes a certificate away, whoever brought it.
pub(crate) fn remove(file: &str) -> Result<String> {
    let bytes = std::fs::read(file).doing(|| format!("cannot read {file}"))?;
    let store = Roots::open()?;
    let certificate = find(&store, &bytes);
    if certificate.is_null() {
        return Err(Error::failed(format!("{file} is not trusted")));
    }
    // SAFETY: the certificate is of this store; the call frees it, whatever it says. What is written is
    // written when the store is told to.
    let done = unsafe {
        CertDeleteCertificateFromStore(certificate) != 0
            && CertControlStore(store.0, 0, CERT_STORE_CTRL_COMMIT, std::ptr::null()) != 0
    };
    if !done {
        return Err(last_error(&format!("cannot untrust {file}")));
    }
    Ok("untrusted".to_owned())
}

fn last_error(sentence: &str) -> Error {
    Error::because(sentence, std::io::Error::last_os_error())
}
