//! The keys of Ignition 2.2. It is the only 2.x that we read: what came later has its own place in 3.x.

use super::keys::{DROP_IN, OWNER, RAID, TIMEOUTS, VERIFICATION};
use crate::shape::Shape::{Flag, Integer, List, Text};
use crate::shape::{Shape, TEXTS, object, optional, required};

pub(crate) const CONFIG: Shape = object(
    "",
    &[
        required("ignition", &IGNITION),
        optional("networkd", &NETWORKD),
        optional("passwd", &PASSWD),
        optional("storage", &STORAGE),
        optional("systemd", &SYSTEMD),
    ],
);

pub(crate) const IGNITION: Shape = object(
    "",
    &[
        optional("config", &REFERENCES),
        optional("security", &SECURITY),
        optional("timeouts", &TIMEOUTS),
        required("version", &Text),
    ],
);

pub(crate) const REFERENCES: Shape = object(
    "",
    &[
        optional("append", &List(&REFERENCE)),
        optional("replace", &REFERENCE),
    ],
);

const REFERENCE: Shape = object(
    "",
    &[
        optional("source", &Text),
        optional("verification", &VERIFICATION),
    ],
);

pub(crate) const SECURITY: Shape = object("", &[optional("tls", &TLS)]);

const TLS: Shape = object("", &[optional("certificateAuthorities", &List(&REFERENCE))]);

const NETWORKD: Shape = object("", &[optional("units", &List(&NETWORKD_UNIT))]);

pub(crate) const NETWORKD_UNIT: Shape = object(
    "name",
    &[
        optional("contents", &Text),
        optional("dropins", &List(&DROP_IN)),
        required("name", &Text),
    ],
);

const PASSWD: Shape = object(
    "",
    &[
        optional("groups", &List(&GROUP)),
        optional("users", &List(&USER)),
    ],
);

pub(crate) const GROUP: Shape = object(
    "name",
    &[
        optional("gid", &Integer),
        required("name", &Text),
        optional("passwordHash", &Text),
        optional("system", &Flag),
    ],
);

pub(crate) const USER: Shape = object(
    "name",
    &[
        optional("create", &USER_CREATE),
        optional("gecos", &Text),
        optional("groups", &TEXTS),
        optional("homeDir", &Text),
        required("name", &Text),
        optional("noCreateHome", &Flag),
        optional("noLogInit", &Flag),
        optional("noUserGroup", &Flag),
        optional("passwordHash", &Text),
        optional("primaryGroup", &Text),
        optional("shell", &Text),
        optional("sshAuthorizedKeys", &TEXTS),
        optional("system", &Flag),
        optional("uid", &Integer),
    ],
);

const USER_CREATE: Shape = object(
    "",
    &[
        optional("gecos", &Text),
        optional("groups", &TEXTS),
        optional("homeDir", &Text),
        optional("noCreateHome", &Flag),
        optional("noLogInit", &Flag),
        optional("noUserGroup", &Flag),
        optional("primaryGroup", &Text),
        optional("shell", &Text),
        optional("system", &Flag),
        optional("uid", &Integer),
    ],
);

const STORAGE: Shape = object(
    "",
    &[
        optional("directories", &List(&DIRECTORY)),
        optional("disks", &List(&DISK)),
        optional("files", &List(&FILE)),
        optional("filesystems", &List(&FILESYSTEM)),
        optional("links", &List(&LINK)),
        optional("raid", &List(&RAID)),
    ],
);

pub(crate) const DIRECTORY: Shape = object(
    "path",
    &[
        required("filesystem", &Text).text_by_default("root"),
        optional("group", &OWNER).root_by_default(),
        optional("mode", &Integer).number_by_default(0o755),
        optional("overwrite", &Flag).not_kept(),
        required("path", &Text),
        optional("user", &OWNER).root_by_default(),
    ],
);

pub(crate) const DISK: Shape = object(
    "device",
    &[
        required("device", &Text),
        optional("partitions", &List(&PARTITION)),
        optional("wipeTable", &Flag),
    ],
);

const PARTITION: Shape = object(
    "label",
    &[
        optional("guid", &Text),
        optional("label", &Text),
        optional("number", &Integer).number_by_default(0),
        optional("size", &Integer).number_by_default(0),
        optional("start", &Integer).number_by_default(0),
        optional("typeGuid", &Text),
    ],
);

const FILE: Shape = object(
    "path",
    &[
        optional("append", &Flag),
        optional("contents", &CONTENTS),
        required("filesystem", &Text),
        optional("group", &OWNER),
        optional("mode", &Integer),
        optional("overwrite", &Flag),
        required("path", &Text),
        optional("user", &OWNER),
    ],
);

const CONTENTS: Shape = object(
    "",
    &[
        optional("compression", &Text),
        optional("source", &Text),
        optional("verification", &VERIFICATION),
    ],
);

pub(crate) const FILESYSTEM: Shape = object(
    "name",
    &[
        optional("mount", &MOUNT),
        optional("name", &Text),
        optional("path", &Text),
    ],
);

const MOUNT: Shape = object(
    "",
    &[
        optional("create", &MOUNT_CREATE),
        required("device", &Text),
        required("format", &Text),
        optional("label", &Text),
        optional("options", &TEXTS),
        optional("uuid", &Text),
        optional("wipeFilesystem", &Flag),
    ],
);

const MOUNT_CREATE: Shape = object("", &[optional("force", &Flag), optional("options", &TEXTS)]);

pub(crate) const LINK: Shape = object(
    "path",
    &[
        required("filesystem", &Text).text_by_default("root"),
        optional("group", &OWNER).root_by_default(),
        optional("hard", &Flag),
        optional("overwrite", &Flag).not_kept(),
        required("path", &Text),
        optional("target", &Text),
        optional("user", &OWNER).root_by_default(),
    ],
);

const SYSTEMD: Shape = object("", &[optional("units", &List(&UNIT))]);

const UNIT: Shape = object(
    "name",
    &[
        optional("contents", &Text),
        optional("dropins", &List(&DROP_IN)),
        optional("enable", &Flag),
        optional("enabled", &Flag),
        optional("mask", &Flag),
        required("name", &Text),
    ],
);
