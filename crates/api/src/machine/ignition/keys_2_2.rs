//! The keys of Ignition 2.2. It is the only 2.x that we read: what came later has its own place in 3.x.

use super::keys::{DROP_IN, OWNER, RAID, TIMEOUTS, VERIFICATION};
use crate::shape::Shape::{Flag, Integer, List, Text};
use crate::shape::{TEXTS, keys};

keys! {
    pub(crate) CONFIG {
        ignition: IGNITION.required(), networkd: NETWORKD, passwd: PASSWD, storage: STORAGE,
        systemd: SYSTEMD,
    }
    pub(crate) IGNITION {
        config: REFERENCES, security: SECURITY, timeouts: TIMEOUTS, version: Text.required(),
    }
    pub(crate) REFERENCES { append: List(REFERENCE), replace: REFERENCE }
    REFERENCE { source: Text, verification: VERIFICATION }
    pub(crate) SECURITY { tls: TLS }
    TLS { certificateAuthorities: List(REFERENCE) }
    NETWORKD { units: List(NETWORKD_UNIT) }
    pub(crate) NETWORKD_UNIT by "name" {
        contents: Text, dropins: List(DROP_IN), name: Text.required(),
    }
    PASSWD { groups: List(GROUP), users: List(USER) }
    pub(crate) GROUP by "name" {
        gid: Integer, name: Text.required(), passwordHash: Text, system: Flag,
    }
    pub(crate) USER by "name" {
        create: USER_CREATE, gecos: Text, groups: TEXTS, homeDir: Text, name: Text.required(),
        noCreateHome: Flag, noLogInit: Flag, noUserGroup: Flag, passwordHash: Text,
        primaryGroup: Text, shell: Text, sshAuthorizedKeys: TEXTS, system: Flag, uid: Integer,
    }
    USER_CREATE {
        gecos: Text, groups: TEXTS, homeDir: Text, noCreateHome: Flag, noLogInit: Flag,
        noUserGroup: Flag, primaryGroup: Text, shell: Text, system: Flag, uid: Integer,
    }
    STORAGE {
        directories: List(DIRECTORY), disks: List(DISK), files: List(FILE),
        filesystems: List(FILESYSTEM), links: List(LINK), raid: List(RAID),
    }
    pub(crate) DIRECTORY by "path" {
        filesystem: Text.required().text_by_default("root"), group: OWNER.root_by_default(),
        mode: Integer.number_by_default(0o755), overwrite: Flag.not_kept(), path: Text.required(),
        user: OWNER.root_by_default(),
    }
    pub(crate) DISK by "device" {
        device: Text.required(), partitions: List(PARTITION), wipeTable: Flag,
    }
    PARTITION by "label" {
        guid: Text, label: Text, number: Integer.number_by_default(0),
        size: Integer.number_by_default(0), start: Integer.number_by_default(0), typeGuid: Text,
    }
    FILE by "path" {
        append: Flag, contents: CONTENTS, filesystem: Text.required(), group: OWNER, mode: Integer,
        overwrite: Flag, path: Text.required(), user: OWNER,
    }
    CONTENTS { compression: Text, source: Text, verification: VERIFICATION }
    pub(crate) FILESYSTEM by "name" { mount: MOUNT, name: Text, path: Text }
    MOUNT {
        create: MOUNT_CREATE, device: Text.required(), format: Text.required(), label: Text,
        options: TEXTS, uuid: Text, wipeFilesystem: Flag,
    }
    MOUNT_CREATE { force: Flag, options: TEXTS }
    pub(crate) LINK by "path" {
        filesystem: Text.required().text_by_default("root"), group: OWNER.root_by_default(),
        hard: Flag, overwrite: Flag.not_kept(), path: Text.required(), target: Text,
        user: OWNER.root_by_default(),
    }
    SYSTEMD { units: List(UNIT) }
    UNIT by "name" {
        contents: Text, dropins: List(DROP_IN), enable: Flag, enabled: Flag, mask: Flag,
        name: Text.required(),
    }
}
