//! The machine, and what tests do with it from outside of our code.

use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_host::disk::{Disk, Host};
use evenkeel_host::windows::WindowsHost;
use evenkeel_plan::machine::entry::{Activity, Entry, ServiceEntry};
use evenkeel_plan::machine::place;
use windows_sys::Win32::Foundation::LocalFree;
use windows_sys::Win32::Security::Authorization::ConvertStringSecurityDescriptorToSecurityDescriptorW;
use windows_sys::Win32::Security::DACL_SECURITY_INFORMATION;
use windows_sys::Win32::Storage::FileSystem::WRITE_DAC;
use windows_sys::Win32::System::Registry::{
    HKEY_LOCAL_MACHINE, RegCloseKey, RegOpenKeyExW, RegSetKeySecurity,
};

/// A service that runs until it is stopped; `--die CODE` lets it crash.
pub(crate) const PROGRAM: &str = r"C:\k\service-double.exe";
const SOON: Duration = Duration::from_secs(20);

/// A service of ours as it is declared.
pub(crate) fn declared(name: &str, arguments: &str) -> ServiceEntry {
    ServiceEntry {
        command: format!("{PROGRAM} {arguments}").trim().to_owned(),
        description: format!("OpenShift managed {name}"),
        account: "LocalSystem".to_owned(),
        ..ServiceEntry::default()
    }
}

/// A host on which the services `names` are not there, before and after.
pub(crate) struct Machine<'a> {
    pub(crate) host: WindowsHost,
    names: &'a [&'a str],
}

impl<'a> Machine<'a> {
    pub(crate) fn without(names: &'a [&'a str]) -> Self {
        let machine = Self {
            host: WindowsHost::live(),
            names,
        };
        machine.clean();
        machine
    }

    fn clean(&self) {
        for name in self.names {
            self.put(name, &Entry::Absent);
        }
    }

    pub(crate) fn put(&self, name: &str, entry: &Entry) {
        let disk = self.host.disk();
        disk.put(&place::service(name), entry).unwrap();
    }

    pub(crate) fn make(&self, name: &str, arguments: &str) -> ServiceEntry {
        let entry = declared(name, arguments);
        self.put(name, &Entry::Service(entry.clone()));
        entry
    }

    pub(crate) fn look(&self, name: &str) -> Entry {
        self.host.disk().look(&place::service(name)).unwrap()
    }

    pub(crate) fn service(&self, name: &str) -> ServiceEntry {
        match self.look(name) {
            Entry::Service(found) => found,
            other => panic!("{name} is {other:?}"),
        }
    }

    pub(crate) fn activity(&self, name: &str) -> Activity {
        self.service(name).activity
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.clean();
        }
    }
}

/// Runs a program of Windows itself.
pub(crate) fn windows(words: &[&str]) {
    let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(done.status.success(), "{words:?}: {done:?}");
}

/// Tells a service to stop. To `sc.exe` one that is gone before it has answered is an error: whoever calls this sees
/// for himself whether it stopped.
pub(crate) fn tell_to_stop(name: &str) {
    let told = Command::new("sc.exe").args(["stop", name]).output();
    told.unwrap();
}

/// Waits until `seen` gives something.
pub(crate) fn until<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = seen() {
            return found;
        }
        assert!(start.elapsed() < SOON, "{what} took too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A key below the Services key that nobody may read; gone when dropped.
pub(crate) struct SealedKey(String);

impl SealedKey {
    pub(crate) fn below_services(name: &str) -> Self {
        let path = format!(r"SYSTEM\CurrentControlSet\Services\{name}");
        let key = format!(r"HKLM\{path}");
        windows(&[
            "reg.exe",
            "add",
            &key,
            "/v",
            "Start",
            "/t",
            "REG_DWORD",
            "/d",
            "4",
            "/f",
        ]);
        let sealed = Self(path);
        sealed.let_in("D:P");
        sealed
    }

    /// Lets in whom `who` names, in Windows' own language for that.
    fn let_in(&self, who: &str) {
        let wide = |text: &str| text.encode_utf16().chain([0]).collect::<Vec<u16>>();
        let (path, who) = (wide(&self.0), wide(who));
        let (mut key, mut rights) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both texts end with a zero; what the calls return is used only if they say so, and given back once.
        let done = unsafe {
            let opened = RegOpenKeyExW(
                HKEY_LOCAL_MACHINE,
                path.as_ptr(),
                0,
                WRITE_DAC,
                &raw mut key,
            );
            assert_eq!(opened, 0);
            let made = ConvertStringSecurityDescriptorToSecurityDescriptorW(
                who.as_ptr(),
                1,
                &raw mut rights,
                std::ptr::null_mut(),
            );
            assert_ne!(made, 0);
            let done = RegSetKeySecurity(key, DACL_SECURITY_INFORMATION, rights);
            LocalFree(rights);
            RegCloseKey(key);
            done
        };
        assert_eq!(done, 0);
    }
}

impl Drop for SealedKey {
    fn drop(&mut self) {
        self.let_in("D:P(A;;KA;;;WD)");
        windows(&["reg.exe", "delete", &format!(r"HKLM\{}", self.0), "/f"]);
    }
}
