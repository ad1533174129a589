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
    CERT_STORE_PROV_SYSTEM_REGISTRY_W, CERT_STORE_PROV_SYSTEM_W, CERT_SYSTEM_STORE_LOCAL_MACHINE,
    CRYPT_INTEGER_BLOB, CertAddCertificateContextToStore, CertCloseStore, CertControlStore,
    CertCreateCertificateContext, CertDeleteCertificateFromStore, CertDuplicateCertificateContext,
    CertEnumCertificatesInStore, CertFreeCertificateContext, CertGetCertificateContextProperty,
    CertOpenStore, CertSetCertificateContextProperty, HCERTSTORE, X509_ASN_ENCODING,
};

use windows_sys::core::PCSTR;

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
    /// What the store refused: it stays as it was.
    pub refused: Vec<RefusedRoot>,
    /// What was asked of the store for that.
    pub writes: Writes,
}

/// A root that the store took no change of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRoot {
    /// SHA-256 of the certificate.
    pub fingerprint: Hash,
    /// Why not.
    pub why: String,
}

impl Synced {
    /// The same, or an error that names all that was refused: for whoever has to have all of it.
    pub fn whole(self) -> Result<Self> {
        if self.refused.is_empty() {
            return Ok(self);
        }
        let refused = self.refused.iter();
        let refused: Vec<_> = refused
            .map(|it| format!("certificate {}: {}", it.fingerprint, it.why))
            .collect();
        let refused = io::Error::other(refused.join("; "));
        Err(Error::path("bring to the trust bundle", NAME, refused))
    }
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
    RootStore::all()?.each(|certificate| roots.push(certificate.root()));
    roots.sort_by_key(|root| root.fingerprint);
    Ok(roots)
}

/// Makes exactly `certificates` (DER) be ours: what is missing comes, what is ours and no longer among
/// them goes. Roots that were there before us stay, and stay somebody else's. What the store refuses of one is told,
/// and the others follow all the same.
pub fn sync(certificates: &[&[u8]]) -> Result<Synced> {
    let stores = RootStores {
        all: RootStore::all()?,
        own: RootStore::own(0)?,
    };
    let synced = stores.sync(certificates);
    stores.own.close()?;
    Ok(synced)
}

/// What the machine trusts, and the part of it that is there to be written.
///
/// What a machine trusts is a collection of several stores: its own, that of Group Policy, that of the roots which
/// Windows itself fetches, and others. One certificate may be in more than one of them, and the collection shows it as
/// often. Only the machine's own store is ever changed.
struct RootStores {
    all: RootStore,
    own: RootStore,
}

impl RootStores {
    fn sync(&self, certificates: &[&[u8]]) -> Synced {
        let wanted: Vec<Hash> = certificates.iter().map(|it| Hash::of(it)).collect();
        let mut roots = Vec::new();
        self.all.each(|certificate| roots.push(certificate.root()));
        let change = difference(&wanted, &roots);
        let mut synced = Synced::default();
        let mut note =
            |done: Result<bool>, fingerprint, list: fn(&mut Synced) -> &mut Vec<Hash>| match done {
                Ok(true) => list(&mut synced).push(fingerprint),
                Ok(false) => {}
                Err(error) => synced.refused.push(RefusedRoot {
                    fingerprint,
                    why: error.with_causes(),
                }),
            };
        let mut outdated = Vec::new();
        self.own.each(|certificate| {
            let root = certificate.root();
            if root.is_our_root && change.remove.contains(&root.fingerprint) {
                outdated.push((root.fingerprint, certificate));
            }
        });
        // Not while walking through the store: whoever walks loses his place.
        for (fingerprint, certificate) in outdated {
            let gone = self.own.remove(certificate).map(|()| true);
            note(gone, fingerprint, |it| &mut it.removed);
        }
        for at in change.add {
            note(self.own.add(certificates[at]), wanted[at], |it| {
                &mut it.added
            });
        }
        synced.writes = self.own.writes.take();
        synced
    }
}

/// An open store. What is changed is saved when it is closed.
struct RootStore {
    handle: HCERTSTORE,
    writes: Cell<Writes>,
}

impl RootStore {
    /// All that the machine trusts, wherever it comes from.
    fn all() -> Result<Self> {
        Self::open(CERT_STORE_PROV_SYSTEM_W, 0)
    }

    /// The one store of it that is the machine's own.
    fn own(flags: u32) -> Result<Self> {
        Self::open(CERT_STORE_PROV_SYSTEM_REGISTRY_W, flags)
    }

    fn open(provider: PCSTR, flags: u32) -> Result<Self> {
        let name = wide("ROOT");
        // SAFETY: these providers want a name that ends with a zero, which outlives the call.
        let store = unsafe {
            CertOpenStore(
                provider,
                0,
                0,
                CERT_SYSTEM_STORE_LOCAL_MACHINE | flags,
                name.as_ptr().cast(),
            )
        };
        Self::opened(store)
    }

    fn opened(store: HCERTSTORE) -> Result<Self> {
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

    /// Adds a root of ours; `false` if it is there already. It has its tag before it is in the store: there is no moment
    /// at which one is trusted that nobody would take away again.
    fn add(&self, certificate: &[u8]) -> Result<bool> {
        let mut writes = self.writes.get();
        writes.imports += 1;
        self.writes.set(writes);
        let certificate = Certificate::of(certificate)?;
        certificate.tag()?;
        // SAFETY: store and certificate are open; the call copies the certificate with its properties.
        let done = unsafe {
            CertAddCertificateContextToStore(
                self.handle,
                certificate.0,
                CERT_STORE_ADD_NEW,
                std::ptr::null_mut(),
            )
        };
        if done != 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(CRYPT_E_EXISTS) {
            return Ok(false);
        }
        Err(Error::path("add a certificate to", NAME, error))
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

impl Drop for RootStore {
    fn drop(&mut self) {
        // SAFETY: the store was opened by us and is closed once.
        unsafe {
            CertCloseStore(self.handle, 0);
        }
    }
}

/// A certificate, of a store or of none yet; freed when dropped.
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
    /// The certificate with these bytes, which is in no store.
    fn of(encoded: &[u8]) -> Result<Self> {
        let length = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
        // SAFETY: the bytes are `length` long; what comes back is freed by its owner.
        let made =
            unsafe { CertCreateCertificateContext(X509_ASN_ENCODING, encoded.as_ptr(), length) };
        if made.is_null() {
            return Err(failed("read a certificate for"));
        }
        Ok(Self(made))
    }

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
            return Err(failed("tag a certificate for"));
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

#[cfg(test)]
mod tests {
    use windows_sys::Win32::Security::Cryptography::{
        CERT_STORE_PROV_COLLECTION, CERT_STORE_PROV_MEMORY, CERT_STORE_READONLY_FLAG,
        CertAddStoreToCollection,
    };

    use super::*;

    fn certificate(name: &str) -> Vec<u8> {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        parameters.self_signed(&key).unwrap().der().to_vec()
    }

    fn made(provider: PCSTR) -> RootStore {
        // SAFETY: these providers want no argument.
        let store = unsafe { CertOpenStore(provider, 0, 0, 0, std::ptr::null()) };
        RootStore::opened(store).unwrap()
    }

    fn in_store(store: &RootStore) -> Vec<Root> {
        let mut roots = Vec::new();
        store.each(|certificate| roots.push(certificate.root()));
        roots
    }

    /// As Windows has it: the machine's own store and that of Group Policy, shown as one.
    fn stores() -> (RootStores, RootStore) {
        let stores = RootStores {
            all: made(CERT_STORE_PROV_COLLECTION),
            own: made(CERT_STORE_PROV_MEMORY),
        };
        let policy = made(CERT_STORE_PROV_MEMORY);
        for store in [&stores.own, &policy] {
            // SAFETY: both stores are open, and the collection holds the other one.
            let added = unsafe { CertAddStoreToCollection(stores.all.handle, store.handle, 0, 0) };
            assert_ne!(added, 0);
        }
        (stores, policy)
    }

    /// Brings a certificate as somebody else does.
    fn bring(store: &RootStore, encoded: &[u8]) {
        let certificate = Certificate::of(encoded).unwrap();
        // SAFETY: store and certificate are open.
        let done = unsafe {
            CertAddCertificateContextToStore(
                store.handle,
                certificate.0,
                CERT_STORE_ADD_NEW,
                std::ptr::null_mut(),
            )
        };
        assert_ne!(done, 0);
    }

    /// Covers W09.
    #[test]
    fn only_the_entry_that_is_ours_goes_and_its_twin_from_group_policy_stays() {
        let (stores, policy) = stores();
        let root = certificate("one.example");
        let fingerprint = Hash::of(&root);
        assert_eq!(stores.sync(&[&root]).added, [fingerprint]);
        bring(&policy, &root);
        let shown = in_store(&stores.all);
        assert_eq!(shown.len(), 2);
        assert_eq!(shown.iter().filter(|it| it.is_our_root).count(), 1);

        assert_eq!(stores.sync(&[&root]), Synced::default());
        let synced = stores.sync(&[]);
        assert_eq!(
            (synced.removed, synced.refused),
            (vec![fingerprint], vec![])
        );
        assert_eq!(in_store(&stores.own), []);
        let theirs = Root {
            fingerprint,
            is_our_root: false,
        };
        assert_eq!(in_store(&policy), std::slice::from_ref(&theirs));
        // What policy brings is as good as ours, and nothing that we remove.
        assert_eq!(stores.sync(&[&root]).added, []);
        assert_eq!(stores.sync(&[]).removed, []);
        assert_eq!(in_store(&stores.all), [theirs]);
    }

    /// Covers W09.
    #[test]
    fn one_that_the_store_refuses_is_named_and_the_others_follow() {
        let (stores, _policy) = stores();
        let (one, two) = (certificate("one.example"), certificate("two.example"));
        let synced = stores.sync(&[&one, b"no certificate", &two]);
        assert_eq!(synced.added, [Hash::of(&one), Hash::of(&two)]);
        let [refused] = synced.refused.as_slice() else {
            panic!("{synced:?}")
        };
        assert_eq!(refused.fingerprint, Hash::of(b"no certificate"));
        let named = refused.fingerprint.to_string();
        let said = synced.whole().unwrap_err().with_causes();
        assert!(said.contains(&named), "{said}");
    }

    /// Covers W09.
    #[test]
    fn access_that_is_denied_to_one_is_said_and_the_others_follow() {
        let root = certificate("denied.example");
        let added = sync(&[&root]).unwrap().added;
        assert_eq!(added, [Hash::of(&root)]);
        let (one, two) = (certificate("one.example"), certificate("two.example"));
        let stores = RootStores {
            all: RootStore::all().unwrap(),
            own: RootStore::own(CERT_STORE_READONLY_FLAG).unwrap(),
        };
        // Wine lets nobody take out of such a store what is there, and everybody put into it what is new.
        let synced = stores.sync(&[&one, &two]);
        let [refused] = synced.refused.as_slice() else {
            panic!("{synced:?}")
        };
        assert_eq!(refused.fingerprint, Hash::of(&root));
        assert!(refused.why.to_lowercase().contains("denied"), "{refused:?}");
        assert_eq!((synced.added.len(), synced.removed.len()), (2, 0));
        drop(stores);
        assert!(sync(&[]).unwrap().removed.contains(&added[0]));
    }

    /// Covers W09.
    #[test]
    fn a_certificate_has_its_tag_before_any_store_has_it() {
        let root = certificate("one.example");
        let made = Certificate::of(&root).unwrap();
        assert!(!made.root().is_our_root);
        made.tag().unwrap();
        assert!(made.root().is_our_root);
        let (stores, _policy) = stores();
        stores.own.add(&root).unwrap();
        let kept = in_store(&stores.own);
        assert!(kept.iter().all(|it| it.is_our_root) && kept.len() == 1);
    }
}
