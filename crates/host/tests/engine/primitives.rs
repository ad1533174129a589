//! Each call of a disk, with what it refuses.

use std::io::ErrorKind;

use evenkeel_host::Error;
use evenkeel_host::disk::{Disk, Folder};
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};

use crate::machine::{AnyDisk, every_machine, kind};

const ROOT: Ids = Ids { user: 0, group: 0 };

fn create(disk: &AnyDisk, path: &str, contents: &str) -> evenkeel_host::Result<()> {
    disk.create(path, contents.as_bytes(), 0o644, ROOT)
}

fn make_folder(disk: &AnyDisk, path: &str) -> evenkeel_host::Result<()> {
    disk.make_folder(path, 0o755, ROOT)
}

fn link_to(target: &str) -> Entry {
    Entry::Link {
        target: target.to_owned(),
    }
}

#[test]
fn where_nothing_is_there_is_nothing_to_see_and_removing_it_is_fine() {
    every_machine(|machine| {
        let disk = &machine.disk;
        for path in ["/none", "/none/below"] {
            assert_eq!(disk.look(path).unwrap(), Entry::Absent);
            assert_eq!(disk.folder(path).unwrap(), Folder::Missing);
            assert_eq!(disk.read(path).unwrap(), None);
            assert_eq!(disk.list(path).unwrap(), Vec::<String>::new());
            disk.remove(path).unwrap();
            assert!(disk.remove_folder(path).unwrap());
        }
        assert_eq!(disk.folder("/").unwrap(), Folder::There);
        assert_eq!(disk.list("/").unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_file_has_the_contents_mode_and_owner_it_was_made_with() {
    every_machine(|machine| {
        let owner = if machine.gives_files_away() {
            Ids { user: 7, group: 8 }
        } else {
            ROOT
        };
        for (path, mode) in [("/plain", 0o644), ("/suid", 0o4755), ("/tight", 0o400)] {
            machine.disk.create(path, b"text", mode, owner).unwrap();
            let made = Entry::File {
                hash: Hash::of(b"text"),
                mode,
                owner,
            };
            assert_eq!(machine.disk.look(path).unwrap(), made);
            assert_eq!(machine.text(path).as_deref(), Some("text"));
        }
        machine.disk.make_folder("/folder", 0o1777, owner).unwrap();
        let made = Entry::Directory {
            mode: 0o1777,
            owner,
        };
        assert_eq!(machine.disk.look("/folder").unwrap(), made);
        let names = ["folder", "plain", "suid", "tight"];
        assert_eq!(machine.disk.list("/").unwrap(), names, "sorted");
    });
}

#[test]
fn nothing_is_made_where_something_stands() {
    every_machine(|machine| {
        let disk = &machine.disk;
        create(disk, "/file", "x").unwrap();
        make_folder(disk, "/folder").unwrap();
        disk.link("/nowhere", "/missing").unwrap();
        for path in ["/file", "/folder", "/nowhere"] {
            assert_eq!(kind(create(disk, path, "y")), ErrorKind::AlreadyExists);
            assert_eq!(kind(disk.link(path, "y")), ErrorKind::AlreadyExists);
            assert_eq!(kind(make_folder(disk, path)), ErrorKind::AlreadyExists);
        }
        assert_eq!(machine.text("/file").as_deref(), Some("x"));
        assert_eq!(disk.look("/missing").unwrap(), Entry::Absent);
    });
}

#[test]
fn nothing_is_made_without_a_folder_to_hold_it() {
    every_machine(|machine| {
        let disk = &machine.disk;
        create(disk, "/file", "x").unwrap();
        disk.link("/nowhere", "/missing").unwrap();
        for (folder, expected) in [
            ("/none", ErrorKind::NotFound),
            ("/nowhere", ErrorKind::NotFound),
            ("/file", ErrorKind::NotADirectory),
        ] {
            let path = format!("{folder}/below");
            assert_eq!(kind(create(disk, &path, "y")), expected, "{path}");
            assert_eq!(kind(disk.link(&path, "y")), expected, "{path}");
            assert_eq!(kind(make_folder(disk, &path)), expected, "{path}");
            assert_eq!(kind(disk.rename("/file", &path)), expected, "{path}");
            assert_eq!(kind(disk.sync_folder(folder)), expected, "{folder}");
            assert_eq!(disk.look(&path).unwrap(), Entry::Absent);
            assert_eq!(disk.read(&path).unwrap(), None);
        }
        assert_eq!(kind(disk.remove("/file/below")), ErrorKind::NotADirectory);
        let removed = disk.remove_folder("/file/below");
        assert_eq!(kind(removed), ErrorKind::NotADirectory);
    });
}

#[test]
fn a_rename_replaces_in_one_instant_and_never_a_folder_with_something_in_it() {
    every_machine(|machine| {
        let disk = &machine.disk;
        for name in ["a", "b", "c"] {
            create(disk, &format!("/{name}"), name).unwrap();
            make_folder(disk, &format!("/folder-{name}")).unwrap();
        }
        create(disk, "/folder-c/inside", "x").unwrap();
        disk.link("/link", "/a").unwrap();

        disk.rename("/a", "/b").unwrap();
        assert_eq!(machine.text("/b").as_deref(), Some("a"));
        assert_eq!(disk.look("/a").unwrap(), Entry::Absent);
        disk.rename("/b", "/link").unwrap();
        assert_eq!(machine.text("/link").as_deref(), Some("a"));
        assert_eq!(
            disk.look("/a").unwrap(),
            Entry::Absent,
            "not through a link"
        );
        disk.rename("/folder-a", "/folder-b").unwrap();
        disk.rename("/folder-c", "/moved").unwrap();
        assert_eq!(machine.text("/moved/inside").as_deref(), Some("x"));

        for (from, to, expected) in [
            ("/none", "/c", ErrorKind::NotFound),
            ("/c", "/folder-b", ErrorKind::IsADirectory),
            ("/folder-b", "/c", ErrorKind::NotADirectory),
            ("/folder-b", "/moved", ErrorKind::DirectoryNotEmpty),
            ("/moved", "/moved/below", ErrorKind::InvalidInput),
        ] {
            assert_eq!(kind(disk.rename(from, to)), expected, "{from} to {to}");
        }
        disk.rename("/c", "/c").unwrap();
        assert_eq!(machine.text("/c").as_deref(), Some("c"));
    });
}

#[test]
fn a_folder_goes_only_when_it_is_empty_and_only_as_a_folder() {
    every_machine(|machine| {
        let disk = &machine.disk;
        make_folder(disk, "/folder").unwrap();
        create(disk, "/folder/file", "x").unwrap();
        disk.link("/link", "/folder").unwrap();
        assert!(!disk.remove_folder("/folder").unwrap());
        assert_eq!(kind(disk.remove("/folder")), ErrorKind::IsADirectory);
        for path in ["/folder/file", "/link"] {
            let removed = disk.remove_folder(path);
            assert_eq!(kind(removed), ErrorKind::NotADirectory, "{path}");
        }
        disk.remove("/link").unwrap();
        disk.remove("/folder/file").unwrap();
        assert!(disk.remove_folder("/folder").unwrap());
        assert_eq!(disk.list("/").unwrap(), Vec::<String>::new());
    });
}

#[test]
fn links_above_a_path_are_followed_and_never_lead_out_of_the_root() {
    every_machine(|machine| {
        let disk = &machine.disk;
        make_folder(disk, "/real").unwrap();
        make_folder(disk, "/real/deep").unwrap();
        for (link, target) in [
            ("/absolute", "/real/deep"),
            ("/relative", "real/./deep"),
            ("/around", "/real/../real/deep"),
            ("/above", "../../../real/deep"),
            ("/chain", "above"),
        ] {
            disk.link(link, target).unwrap();
            assert_eq!(disk.folder(link).unwrap(), Folder::There, "{link}");
            let path = format!("{link}/file");
            create(disk, &path, link).unwrap();
            let real = machine.text("/real/deep/file");
            assert_eq!(real.as_deref(), Some(link));
            assert_eq!(disk.list(link).unwrap(), ["file"]);
            assert_eq!(disk.look(link).unwrap(), link_to(target));
            disk.sync_files(std::slice::from_ref(&path)).unwrap();
            disk.sync_folder(link).unwrap();
            disk.remove(&path).unwrap();
        }
    });
}

#[test]
fn a_path_that_can_hold_nothing_says_why() {
    every_machine(|machine| {
        let disk = &machine.disk;
        create(disk, "/file", "x").unwrap();
        for (link, target) in [
            ("/to-file", "/file"),
            ("/nowhere", "/none/at/all"),
            ("/outside", "/../../../../../proc/self/root/tmp"),
            ("/circle", "/circle"),
        ] {
            disk.link(link, target).unwrap();
        }
        let gone = |target: &str| {
            format!("is a symbolic link to {target}, which is missing or outside the root")
        };
        for (path, why) in [
            ("/file", "is not a folder".to_owned()),
            ("/file/below", "is not a folder".to_owned()),
            ("/to-file", "is not a folder".to_owned()),
            ("/nowhere", gone("/none/at/all")),
            ("/outside", gone("/../../../../../proc/self/root/tmp")),
            ("/circle", "is a symbolic link loop".to_owned()),
        ] {
            assert_eq!(disk.folder(path).unwrap(), Folder::Blocked(why), "{path}");
        }
        assert_eq!(disk.folder("/nowhere/below").unwrap(), Folder::Missing);
        for path in ["/file", "/to-file", "/nowhere", "/outside"] {
            assert_eq!(disk.list(path).unwrap(), Vec::<String>::new(), "{path}");
        }
        assert!(disk.list("/circle").is_err());
    });
}

#[test]
fn the_last_name_of_a_path_is_never_followed() {
    every_machine(|machine| {
        let disk = &machine.disk;
        create(disk, "/file", "x").unwrap();
        disk.link("/link", "/file").unwrap();
        assert_eq!(disk.look("/link").unwrap(), link_to("/file"));
        assert_eq!(disk.read("/link").unwrap(), None);
        assert!(disk.sync_files(&["/link".to_owned()]).is_err());
        assert!(disk.lock("/link").is_err());
        disk.remove("/link").unwrap();
        assert_eq!(machine.text("/file").as_deref(), Some("x"));
    });
}

#[test]
fn only_what_is_there_can_be_made_durable() {
    every_machine(|machine| {
        let disk = &machine.disk;
        create(disk, "/file", "x").unwrap();
        let paths = |path: &str| vec!["/file".to_owned(), path.to_owned()];
        disk.sync_files(&paths("/file")).unwrap();
        let missing = kind(disk.sync_files(&paths("/none")));
        assert_eq!(missing, ErrorKind::NotFound);
        disk.sync_folder("/").unwrap();
        let many: Vec<String> = (0..40).map(|number| format!("/many-{number}")).collect();
        for path in &many {
            create(disk, path, "x").unwrap();
        }
        disk.sync_files(&many).unwrap();
    });
}

#[test]
fn a_machine_is_claimed_by_one_at_a_time() {
    every_machine(|machine| {
        let disk = &machine.disk;
        let lock = disk.lock("/lock").unwrap();
        assert!(matches!(disk.lock("/lock"), Err(Error::Busy { .. })));
        drop(lock);
        drop(disk.lock("/lock").unwrap());
        assert!(disk.lock("/none/lock").is_err());
    });
}
