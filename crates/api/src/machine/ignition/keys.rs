//! The keys of Ignition 3.0 to 3.5, each with the minor version that brought it. A test holds this
//! table against the types of `ignition-config`, so that neither side knows a key the other does not.

use crate::shape::Shape::{Flag, Integer, List, Text};
use crate::shape::{Shape, TEXTS, object, optional, required};

pub(crate) const CONFIG: Shape = object(
    "",
    &[
        required("ignition", &IGNITION),
        optional("kernelArguments", &KERNEL_ARGUMENTS).since(3),
        optional("passwd", &PASSWD),
        optional("storage", &STORAGE),
        optional("systemd", &SYSTEMD),
    ],
);

pub(crate) const IGNITION: Shape = object(
    "",
    &[
        optional("config", &REFERENCES),
        optional("proxy", &PROXY).since(1),
        optional("security", &SECURITY),
        optional("timeouts", &TIMEOUTS),
        required("version", &Text),
    ],
);

pub(crate) const REFERENCES: Shape = object(
    "",
    &[
        optional("merge", &List(&REFERENCE)),
        optional("replace", &REFERENCE),
    ],
);

/// Something elsewhere that Ignition itself reads.
pub(crate) const REFERENCE: Shape = object(
    "",
    &[
        optional("compression", &Text).since(1),
        optional("httpHeaders", &List(&HTTP_HEADER)).since(1),
        optional("source", &Text),
        optional("verification", &VERIFICATION),
    ],
);

/// A file's contents. Another source is not compressed as the one before was.
pub(crate) const CONTENTS: Shape = object(
    "",
    &[
        optional("compression", &Text).goes_with("source"),
        optional("httpHeaders", &List(&HTTP_HEADER)).since(1),
        optional("source", &Text),
        optional("verification", &VERIFICATION),
    ],
);

pub(crate) const HTTP_HEADER: Shape = object(
    "name",
    &[
        required("name", &Text),
        optional("value", &Text).takes_away(),
    ],
);

pub(crate) const VERIFICATION: Shape = object("", &[optional("hash", &Text)]);

pub(crate) const PROXY: Shape = object(
    "",
    &[
        optional("httpProxy", &Text),
        optional("httpsProxy", &Text),
        optional("noProxy", &TEXTS),
    ],
);

pub(crate) const SECURITY: Shape = object("", &[optional("tls", &TLS)]);

pub(crate) const TLS: Shape = object("", &[optional("certificateAuthorities", &List(&REFERENCE))]);

pub(crate) const TIMEOUTS: Shape = object(
    "",
    &[
        optional("httpResponseHeaders", &Integer).number_by_default(10),
        optional("httpTotal", &Integer).number_by_default(0),
    ],
);

pub(crate) const KERNEL_ARGUMENTS: Shape = object(
    "",
    &[
        optional("shouldExist", &TEXTS).of_family("arguments"),
        optional("shouldNotExist", &TEXTS).of_family("arguments"),
    ],
);

pub(crate) const PASSWD: Shape = object(
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
        optional("shouldExist", &Flag).since(2).true_by_default(),
        optional("system", &Flag),
    ],
);

pub(crate) const USER: Shape = object(
    "name",
    &[
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
        optional("shouldExist", &Flag).since(2).true_by_default(),
        optional("sshAuthorizedKeys", &TEXTS),
        optional("system", &Flag),
        optional("uid", &Integer),
    ],
);

pub(crate) const STORAGE: Shape = object(
    "",
    &[
        optional("directories", &List(&DIRECTORY)).of_family("paths"),
        optional("disks", &List(&DISK)),
        optional("files", &List(&FILE)).of_family("paths"),
        optional("filesystems", &List(&FILESYSTEM)),
        optional("links", &List(&LINK)).of_family("paths"),
        optional("luks", &List(&LUKS)).since(2),
        optional("raid", &List(&RAID)),
    ],
);

pub(crate) const OWNER: Shape = object("", &[optional("id", &Integer), optional("name", &Text)]);

pub(crate) const DIRECTORY: Shape = object(
    "path",
    &[
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

pub(crate) const PARTITION: Shape = object(
    "label",
    &[
        optional("guid", &Text),
        optional("label", &Text),
        optional("number", &Integer).number_by_default(0),
        optional("resize", &Flag).since(2),
        optional("shouldExist", &Flag).true_by_default(),
        optional("sizeMiB", &Integer),
        optional("startMiB", &Integer),
        optional("typeGuid", &Text),
        optional("wipePartitionEntry", &Flag),
    ],
);

pub(crate) const FILE: Shape = object(
    "path",
    &[
        optional("append", &List(&CONTENTS)).appended(),
        optional("contents", &CONTENTS),
        optional("group", &OWNER),
        optional("mode", &Integer),
        optional("overwrite", &Flag),
        required("path", &Text),
        optional("user", &OWNER),
    ],
);

pub(crate) const FILESYSTEM: Shape = object(
    "device",
    &[
        required("device", &Text),
        optional("format", &Text),
        optional("label", &Text),
        optional("mountOptions", &TEXTS).since(1).appended(),
        optional("options", &TEXTS).appended(),
        optional("path", &Text),
        optional("uuid", &Text),
        optional("wipeFilesystem", &Flag),
    ],
);

pub(crate) const LINK: Shape = object(
    "path",
    &[
        optional("group", &OWNER).root_by_default(),
        optional("hard", &Flag),
        optional("overwrite", &Flag).not_kept(),
        required("path", &Text),
        optional("target", &Text),
        optional("user", &OWNER).root_by_default(),
    ],
);

pub(crate) const LUKS: Shape = object(
    "name",
    &[
        optional("cex", &CEX).since(5),
        optional("clevis", &CLEVIS),
        optional("device", &Text),
        optional("discard", &Flag).since(4),
        optional("keyFile", &REFERENCE),
        optional("label", &Text),
        required("name", &Text),
        optional("openOptions", &TEXTS).since(4),
        optional("options", &TEXTS).appended(),
        optional("uuid", &Text),
        optional("wipeVolume", &Flag),
    ],
);

pub(crate) const CEX: Shape = object("", &[optional("enabled", &Flag)]);

pub(crate) const CLEVIS: Shape = object(
    "",
    &[
        optional("custom", &CLEVIS_CUSTOM),
        optional("tang", &List(&TANG)),
        optional("threshold", &Integer).number_by_default(1),
        optional("tpm2", &Flag),
    ],
);

pub(crate) const CLEVIS_CUSTOM: Shape = object(
    "",
    &[
        optional("config", &Text),
        optional("needsNetwork", &Flag),
        optional("pin", &Text),
    ],
);

pub(crate) const TANG: Shape = object(
    "url",
    &[
        optional("advertisement", &Text).since(4),
        optional("thumbprint", &Text),
        optional("url", &Text),
    ],
);

pub(crate) const RAID: Shape = object(
    "name",
    &[
        optional("devices", &TEXTS),
        optional("level", &Text),
        required("name", &Text),
        optional("options", &TEXTS).appended(),
        optional("spares", &Integer).number_by_default(0),
    ],
);

pub(crate) const SYSTEMD: Shape = object("", &[optional("units", &List(&UNIT))]);

pub(crate) const UNIT: Shape = object(
    "name",
    &[
        optional("contents", &Text),
        optional("dropins", &List(&DROP_IN)),
        optional("enabled", &Flag),
        optional("mask", &Flag),
        required("name", &Text),
    ],
);

pub(crate) const DROP_IN: Shape = object(
    "name",
    &[optional("contents", &Text), required("name", &Text)],
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt;

    use ignition_config::{v3_0, v3_1, v3_2, v3_3, v3_4, v3_5};
    use serde::Deserialize;
    use serde::de::{self, Visitor, value::Error};

    use super::*;

    /// A deserialiser that only listens which fields a type asks for.
    struct Listener<'a>(&'a mut BTreeSet<&'static str>);

    impl<'de> de::Deserializer<'de> for Listener<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(de::Error::custom("not a struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Error> {
            self.0.extend(fields);
            Err(de::Error::custom("heard"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
            unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn fields_of<T: for<'de> Deserialize<'de> + fmt::Debug>() -> BTreeSet<&'static str> {
        let mut fields = BTreeSet::new();
        assert!(T::deserialize(Listener(&mut fields)).is_err());
        fields
    }

    fn ours(shape: &Shape, minor: u8) -> BTreeSet<&'static str> {
        let Shape::Object(object) = shape else {
            unreachable!("the tables under test are objects")
        };
        let known = object.fields.iter().filter(|field| field.since <= minor);
        known.map(|field| field.name).collect()
    }

    /// Covers M04.
    #[test]
    fn the_table_knows_exactly_the_keys_of_every_version() {
        macro_rules! same {
            ($minor:literal, $version:ident: $($shape:ident = $name:ident),+ $(,)?) => {
                $(assert_eq!(
                    ours(&$shape, $minor),
                    fields_of::<$version::$name>(),
                    "{} in 3.{}", stringify!($name), $minor
                );)+
            };
        }
        macro_rules! in_all {
            ($($minor:literal $version:ident),+) => {
                $(same!($minor, $version:
                    CONFIG = Config, IGNITION = Ignition, REFERENCES = IgnitionConfig,
                    VERIFICATION = Verification, SECURITY = Security, TLS = SecurityTls,
                    TIMEOUTS = Timeouts, PASSWD = Passwd, GROUP = Group, USER = User,
                    STORAGE = Storage, OWNER = NodeUser, OWNER = NodeGroup, DIRECTORY = Directory,
                    DISK = Disk, PARTITION = Partition, FILE = File, FILESYSTEM = Filesystem,
                    LINK = Link, RAID = Raid, SYSTEMD = Systemd, UNIT = Unit, DROP_IN = Dropin,
                );)+
            };
        }
        in_all!(0 v3_0, 1 v3_1, 2 v3_2, 3 v3_3, 4 v3_4, 5 v3_5);
        same!(0, v3_0: REFERENCE = ConfigReference, REFERENCE = CaReference, CONTENTS = FileContents);
        macro_rules! since_one {
            ($($minor:literal $version:ident),+) => {
                $(same!($minor, $version: REFERENCE = Resource, CONTENTS = Resource, PROXY = Proxy,
                    HTTP_HEADER = HttpHeadersItem);)+
            };
        }
        since_one!(1 v3_1, 2 v3_2, 3 v3_3, 4 v3_4, 5 v3_5);
        same!(2, v3_2: LUKS = Luks, TANG = Tang, CLEVIS = LuksClevis, CLEVIS_CUSTOM = LuksClevisCustom);
        macro_rules! since_three {
            ($($minor:literal $version:ident),+) => {
                $(same!($minor, $version: LUKS = Luks, TANG = Tang, CLEVIS = Clevis,
                    CLEVIS_CUSTOM = ClevisCustom, KERNEL_ARGUMENTS = KernelArguments);)+
            };
        }
        since_three!(3 v3_3, 4 v3_4, 5 v3_5);
        same!(5, v3_5: CEX = Cex);
    }

    /// Covers M05.
    #[test]
    fn no_key_of_ours_holds_something_to_run() {
        fn names(shape: &Shape, found: &mut BTreeSet<&'static str>) {
            match shape {
                Shape::Object(object) => {
                    for field in object.fields {
                        found.insert(field.name);
                        names(field.shape, found);
                    }
                }
                Shape::List(element) | Shape::OneOrMany(element) => names(element, found),
                _ => {}
            }
        }
        let mut found = BTreeSet::new();
        names(&CONFIG, &mut found);
        names(&super::super::keys_2_2::CONFIG, &mut found);
        let runs = ["script", "command", "exec", "hook", "run"];
        for name in found {
            let lower = name.to_lowercase();
            assert!(!runs.iter().any(|word| lower.contains(word)), "{name}");
        }
    }
}
