//! Folders that are for the system and for administrators alone, and all that is in them too.

use std::fs::Metadata;
use std::io;
use std::os::windows::fs::MetadataExt;
use std::path::Path;

use windows_sys::Win32::Foundation::{ERROR_SUCCESS, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1, SE_FILE_OBJECT,
    SetNamedSecurityInfoW,
};
use windows_sys::Win32::Security::{
    ACL, DACL_SECURITY_INFORMATION, GetSecurityDescriptorDacl, GetSecurityDescriptorOwner,
    OWNER_SECURITY_INFORMATION, PROTECTED_DACL_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, PSID,
    SECURITY_ATTRIBUTES, SetFileSecurityW,
};
use windows_sys::Win32::Storage::FileSystem::{CreateDirectoryW, FILE_ATTRIBUTE_REPARSE_POINT};

use super::text::wide;

/// Full access for the system and for administrators, who own it, and for nobody else.
const PRIVATE: &str = "O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)";
/// The same for what has nothing in it.
const PRIVATE_FILE: &str = "O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)";
/// The same, where whoever makes a folder owns it.
const NEW: &str = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)";
/// The same, where users may read.
const READABLE: &str = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;GRGX;;;BU)";

/// A security descriptor in memory of the system.
struct Descriptor(PSECURITY_DESCRIPTOR);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it was given to us to free, and nobody else does.
        unsafe { LocalFree(self.0) };
    }
}

impl Descriptor {
    fn read(text: &str) -> io::Result<Self> {
        let text = wide(text);
        let mut descriptor: PSECURITY_DESCRIPTOR = std::ptr::null_mut();
        // SAFETY: the text ends with a zero; the descriptor has an owner who frees it, once.
        let read = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &raw mut descriptor,
                std::ptr::null_mut(),
            )
        };
        if read == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(descriptor))
    }
}

/// Makes a private folder.
pub(super) fn make(path: &str) -> io::Result<()> {
    make_with(path, NEW)
}

fn make_with(path: &str, rights: &str) -> io::Result<()> {
    let (path, descriptor) = (wide(path), Descriptor::read(rights)?);
    let attributes = SECURITY_ATTRIBUTES {
        nLength: u32::try_from(size_of::<SECURITY_ATTRIBUTES>()).unwrap_or_default(),
        lpSecurityDescriptor: descriptor.0,
        bInheritHandle: 0,
    };
    // SAFETY: the path ends with a zero, and the attributes point to a valid descriptor, which lives
    // longer than the call.
    let made = unsafe { CreateDirectoryW(path.as_ptr(), &raw const attributes) };
    if made == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Makes a folder private that is there, and all that is in it, whoever made what. What leads elsewhere is refused: whoever
/// put it there chose where.
pub(super) fn close(path: &str) -> io::Result<()> {
    let top = Path::new(path);
    // From above: from then on nobody else puts anything in, or changes what is there.
    let mut inside = vec![top.to_owned()];
    while let Some(path) = inside.pop() {
        let found = match std::fs::symlink_metadata(&path) {
            // Somebody took it away meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path != top => continue,
            found => found?,
        };
        must_lead_nowhere(&path, &found)?;
        let is_folder = found.is_dir();
        let text = path.to_str().ok_or_else(|| {
            let why = format!("the name of {} is not valid Unicode", path.display());
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        close_one(text, if is_folder { PRIVATE } else { PRIVATE_FILE })?;
        if is_folder {
            for entry in std::fs::read_dir(&path)? {
                inside.push(entry?.path());
            }
        }
    }
    Ok(())
}

fn must_lead_nowhere(path: &Path, found: &Metadata) -> io::Result<()> {
    if found.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT == 0 {
        return Ok(());
    }
    let why = format!(
        "{} is a link or another reparse point: remove it",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Makes a folder that is ours alone, below others that are not. Those on the way to it lead nowhere else, and where we make
/// them nobody else can put something in their place.
pub(super) fn own(path: &str) -> io::Result<()> {
    let above: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
    // All but the drive itself.
    for folder in above.into_iter().rev().skip(1) {
        match std::fs::symlink_metadata(folder) {
            Ok(found) => must_lead_nowhere(folder, &found)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_with(folder.to_str().unwrap_or_default(), READABLE)?;
            }
            Err(error) => return Err(error),
        }
    }
    match make(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    close(path)
}

/// Makes one folder or file private.
fn close_one(path: &str, rights: &str) -> io::Result<()> {
    let (path, descriptor) = (wide(path), Descriptor::read(rights)?);
    let (mut owner, mut list): (PSID, *mut ACL) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut is_there, mut is_default) = (0, 0);
    // SAFETY: the descriptor is valid, and what is written here points into it.
    let read = unsafe {
        GetSecurityDescriptorOwner(descriptor.0, &raw mut owner, &raw mut is_default) != 0
            && GetSecurityDescriptorDacl(
                descriptor.0,
                &raw mut is_there,
                &raw mut list,
                &raw mut is_default,
            ) != 0
    };
    if !read {
        return Err(io::Error::last_os_error());
    }
    let what = OWNER_SECURITY_INFORMATION
        | DACL_SECURITY_INFORMATION
        | PROTECTED_DACL_SECURITY_INFORMATION;
    // SAFETY: the path ends with a zero; owner and list point into the descriptor, which lives longer than
    // the call.
    let code = unsafe {
        SetNamedSecurityInfoW(
            path.as_ptr(),
            SE_FILE_OBJECT,
            what,
            owner,
            std::ptr::null_mut(),
            list,
            std::ptr::null_mut(),
        )
    };
    if code != ERROR_SUCCESS {
        return Err(io::Error::from_raw_os_error(
            i32::try_from(code).unwrap_or_default(),
        ));
    }
    // That told all that is in the folder. Wine lets the folder above have its say in it all the same; this call does not.
    // SAFETY: the path ends with a zero, and the descriptor lives longer than the call.
    let written = unsafe { SetFileSecurityW(path.as_ptr(), what, descriptor.0) };
    if written == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
