//! The machine's store of trusted roots. What is ours there carries our tag as its friendly name; what
//! does not is somebody else's, and never touched.

use std::cell::Cell;
use std::io;

use evenkeel_api::names::windows::MANAGED_TAG;
use evenkeel_plan::machine::entry::Hash;
use evenkeel_plan::windows::trust::{Root, difference};
use windows_sys::Win32::Foundation::CRYPT_E_EXISTS;
use windows_sys::Win32::Security::Cryptography::{
    CERT_CONTEXT, CERT_FRIENDLY_NAME_PROP_ID, CERT_STORE_ADD_NEW, CERT_STORE_CTRL_COMMIT,
    CERT_STORE_PROV_SYSTEM_W, CERT_SYSTEM_STORE_LOCAL_MACHINE, CRYPT_INTEGER_BLOB,
    CertAddEncodedCertificateToStore, CertCloseStore, CertControlStore,
    CertDeleteCertificateFromStore, CertDuplicateCertificateContext, CertEnumCertificatesInStore,
    CertFreeCertificateContext, CertGetCertificateContextProperty, CertOpenStore,
    CertSetCertificateContextProperty, HCERTSTORE, X509_ASN_ENCODING,
};

use super::text::{narrow, wide};
use crate::{Error, Result};

/// Where the machine keeps them.
pub(super) const KEY: &str = r"SOFTWARE\Microsoft\SystemCertificates\ROOT";
const NAME: &str = "the machine's trusted roots";

/// What a [`sync`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Synced {
    /// Roots that came.
    pub added: Vec<Hash>,
    /// Roots of ours that went.
    pub removed: Vec<Hash>,
    /// What was asked of the store for that.
    pub writes: Writes,
}

/// Calls that change the store, whatever came of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Writes {
    /// Certificates that it was given.
    pub imports: u64,
    /// Certificates that were taken out of it.
    pub removals: u64,
}

/// All trusted roots of the machine, in the order of their fingerprints.
pub fn roots() -> Result<Vec<Root>> {
    let mut roots = Vec::new();
    Store::open()?.each(|certificate| roots.push(certificate.root()));
    roots.sort_by_key(|root| root.fingerprint);
    Ok(roots)
}

/// Makes exactly `certificates` (DER) be ours: what is missing comes, what is ours and no longer among
/// them goes. Roots that were there before us stay, and stay somebody else's.
pub fn sync(certificates: &[&[u8]]) -> Result<Synced> {
    let store = Store::open()?;
    let wanted: Vec<Hash> = certificates.iter().map(|it| Hash::of(it)).collect();
    let mut there = Vec::new();
    store.each(|certificate| there.push((certificate.root(), certificate)));
    let roots: Vec<Root> = there.iter().map(|(root, _)| root.clone()).collect();
    let change = difference(&wanted, &roots);
    let mut synced = Synced::default();
    // Not while walking through the store: whoever walks loses his place.
    for (root, certificate) in there {
        if change.remove.contains(&root.fingerprint) {
            store.remove(certificate)?;
            synced.removed.push(root.fingerprint);
        }
    }
    for at in change.add {
        if store.add(certificates[at])? {
            synced.added.push(wanted[at]);
        }
    }
    synced.writes = store.writes.get();
    store.close()?;
    Ok(synced)
}

/// The open store. What is changed is saved when it is closed.
struct Store {
    handle: HCERTSTORE,
    writes: Cell<Writes>,
}

impl Store {
    fn open() -> Result<Self> {
        let name = wide("ROOT");
        // SAFETY: this provider wants a name that ends with a zero, which outlives the call.
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
            return Err(failed("open"));
        }
        Ok(Self {
            handle: store,
            writes: Cell::default(),
        })
    }

    fn each(&self, mut visit: impl FnMut(Certificate)) {
        let mut at: *mut CERT_CONTEXT = std::ptr::null_mut();
        loop {
            // SAFETY: the store is open; the certificate before goes back to be freed by the call.
            at = unsafe { CertEnumCertificatesInStore(self.handle, at) };
            if at.is_null() {
                return;
            }
            // SAFETY: the certificate is valid; its copy is freed by its owner.
            visit(Certificate(unsafe { CertDuplicateCertificateContext(at) }));
        }
    }

    /// Adds a root of ours; `false` if it is there already.
    fn add(&self, certificate: &[u8]) -> Result<bool> {
        let mut writes = self.writes.get();
        writes.imports += 1;
        self.writes.set(writes);
        let mut added: *mut CERT_CONTEXT = std::ptr::null_mut();
        let length = u32::try_from(certificate.len()).unwrap_or(u32::MAX);
        // SAFETY: the bytes are `length` long; what comes back is freed by its owner.
        let done = unsafe {
            CertAddEncodedCertificateToStore(
                self.handle,
                X509_ASN_ENCODING,
                certificate.as_ptr(),
                length,
                CERT_STORE_ADD_NEW,
                &raw mut added,
            )
        };
        if done == 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(CRYPT_E_EXISTS) {
                return Ok(false);
            }
            return Err(Error::path("add a certificate to", NAME, error));
        }
        Certificate(added).tag().map(|()| true)
    }

    fn remove(&self, certificate: Certificate) -> Result<()> {
        let mut writes = self.writes.get();
        writes.removals += 1;
        self.writes.set(writes);
        certificate.delete()
    }

    fn close(self) -> Result<()> {
        // Closing alone does not write what was deleted, on every Windows.
        // SAFETY: the store is open; this command takes no argument.
        unsafe {
            CertControlStore(self.handle, 0, CERT_STORE_CTRL_COMMIT, std::ptr::null());
        }
        // SAFETY: the store is open, and forgotten so that it is closed once.
        let closed = unsafe { CertCloseStore(self.handle, 0) };
        std::mem::forget(self);
        if closed == 0 {
            return Err(failed("save"));
        }
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the store was opened by us and is closed once.
        unsafe {
            CertCloseStore(self.handle, 0);
        }
    }
}

/// A certificate of the store; freed when dropped.
struct Certificate(*mut CERT_CONTEXT);

impl Drop for Certificate {
    fn drop(&mut self) {
        // SAFETY: it is ours alone and freed once.
        unsafe {
            CertFreeCertificateContext(self.0);
        }
    }
}

impl Certificate {
    fn root(&self) -> Root {
        // SAFETY: a certificate's encoded form is as long as it says, and lives as long as it.
        let encoded = unsafe {
            let context = &*self.0;
            std::slice::from_raw_parts(context.pbCertEncoded, context.cbCertEncoded as usize)
        };
        Root {
            fingerprint: Hash::of(encoded),
            is_our_root: self.name() == MANAGED_TAG,
        }
    }

    fn name(&self) -> String {
        let mut units = [0_u16; 256];
        let mut length = u32::try_from(size_of_val(&units)).unwrap_or_default();
        // SAFETY: `units` has room for `length` bytes.
        let found = unsafe {
            CertGetCertificateContextProperty(
                self.0,
                CERT_FRIENDLY_NAME_PROP_ID,
                units.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if found == 0 {
            return String::new();
        }
        narrow(&units)
    }

    /// Marks it as ours.
    fn tag(&self) -> Result<()> {
        let mut text = wide(MANAGED_TAG);
        let blob = CRYPT_INTEGER_BLOB {
            cbData: u32::try_from(text.len() * 2).unwrap_or_default(),
            pbData: text.as_mut_ptr().cast(),
        };
        // SAFETY: this property is a blob that holds a text with its zero; the call copies it.
        let done = unsafe {
            CertSetCertificateContextProperty(
                self.0,
                CERT_FRIENDLY_NAME_PROP_ID,
                0,
                (&raw const blob).cast(),
            )
        };
        if done == 0 {
            return Err(failed("tag a certificate of"));
        }
        Ok(())
    }

    fn delete(self) -> Result<()> {
        // SAFETY: the call frees the certificate, whatever it says; so it is forgotten here.
        let done = unsafe { CertDeleteCertificateFromStore(self.0) };
        std::mem::forget(self);
        if done == 0 {
            return Err(failed("remove a certificate from"));
        }
        Ok(())
    }
}

fn failed(doing: &'static str) -> Error {
    Error::path(doing, NAME, io::Error::last_os_error())
}
