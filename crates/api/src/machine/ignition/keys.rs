//! The keys of Ignition 3.0 to 3.5, each with the minor version that brought it. A test holds this
//! table against the types of `ignition-config`, so that neither side knows a key the other does not.

use crate::shape::Shape::{Flag, Integer, List, Text};
use crate::shape::{TEXTS, keys};

keys! {
    pub(crate) CONFIG {
        ignition: IGNITION.required(), kernelArguments: KERNEL_ARGUMENTS.since(3), passwd: PASSWD,
        storage: STORAGE, systemd: SYSTEMD,
    }
    pub(crate) IGNITION {
        config: REFERENCES, proxy: PROXY.since(1), security: SECURITY, timeouts: TIMEOUTS,
        version: Text.required(),
    }
    pub(crate) REFERENCES { merge: List(REFERENCE), replace: REFERENCE }
    /// Something elsewhere that Ignition itself reads.
    pub(crate) REFERENCE {
        compression: Text.since(1), httpHeaders: List(HTTP_HEADER).since(1), source: Text,
        verification: VERIFICATION,
    }
    /// A file's contents. Another source is not compressed as the one before was.
    pub(crate) CONTENTS {
        compression: Text.goes_with("source"), httpHeaders: List(HTTP_HEADER).since(1),
        source: Text, verification: VERIFICATION,
    }
    pub(crate) HTTP_HEADER by "name" { name: Text.required(), value: Text.takes_away() }
    pub(crate) VERIFICATION { hash: Text }
    pub(crate) PROXY { httpProxy: Text, httpsProxy: Text, noProxy: TEXTS }
    pub(crate) SECURITY { tls: TLS }
    pub(crate) TLS { certificateAuthorities: List(REFERENCE) }
    pub(crate) TIMEOUTS {
        httpResponseHeaders: Integer.number_by_default(10), httpTotal: Integer.number_by_default(0),
    }
    pub(crate) KERNEL_ARGUMENTS {
        shouldExist: TEXTS.of_family("arguments"), shouldNotExist: TEXTS.of_family("arguments"),
    }
    pub(crate) PASSWD { groups: List(GROUP), users: List(USER) }
    pub(crate) GROUP by "name" {
        gid: Integer, name: Text.required(), passwordHash: Text,
        shouldExist: Flag.since(2).true_by_default(), system: Flag,
    }
    pub(crate) USER by "name" {
        gecos: Text, groups: TEXTS, homeDir: Text, name: Text.required(), noCreateHome: Flag,
        noLogInit: Flag, noUserGroup: Flag, passwordHash: Text, primaryGroup: Text, shell: Text,
        shouldExist: Flag.since(2).true_by_default(), sshAuthorizedKeys: TEXTS, system: Flag,
        uid: Integer,
    }
    pub(crate) STORAGE {
        directories: List(DIRECTORY).of_family("paths"), disks: List(DISK),
        files: List(FILE).of_family("paths"), filesystems: List(FILESYSTEM),
        links: List(LINK).of_family("paths"), luks: List(LUKS).since(2), raid: List(RAID),
    }
    pub(crate) OWNER { id: Integer, name: Text }
    pub(crate) DIRECTORY by "path" {
        group: OWNER.root_by_default(), mode: Integer.number_by_default(0o755),
        overwrite: Flag.not_kept(), path: Text.required(), user: OWNER.root_by_default(),
    }
    pub(crate) DISK by "device" {
        device: Text.required(), partitions: List(PARTITION), wipeTable: Flag,
    }
    pub(crate) PARTITION by "label" {
        guid: Text, label: Text, number: Integer.number_by_default(0), resize: Flag.since(2),
        shouldExist: Flag.true_by_default(), sizeMiB: Integer, startMiB: Integer, typeGuid: Text,
        wipePartitionEntry: Flag,
    }
    pub(crate) FILE by "path" {
        append: List(CONTENTS).appended(), contents: CONTENTS, group: OWNER, mode: Integer,
        overwrite: Flag, path: Text.required(), user: OWNER,
    }
    pub(crate) FILESYSTEM by "device" {
        device: Text.required(), format: Text, label: Text, mountOptions: TEXTS.since(1).appended(),
        options: TEXTS.appended(), path: Text, uuid: Text, wipeFilesystem: Flag,
    }
    pub(crate) LINK by "path" {
        group: OWNER.root_by_default(), hard: Flag, overwrite: Flag.not_kept(),
        path: Text.required(), target: Text, user: OWNER.root_by_default(),
    }
    pub(crate) LUKS by "name" {
        cex: CEX.since(5), clevis: CLEVIS, device: Text, discard: Flag.since(4), keyFile: REFERENCE,
        label: Text, name: Text.required(), openOptions: TEXTS.since(4), options: TEXTS.appended(),
        uuid: Text, wipeVolume: Flag,
    }
    pub(crate) CEX { enabled: Flag }
    pub(crate) CLEVIS {
        custom: CLEVIS_CUSTOM, tang: List(TANG), threshold: Integer.number_by_default(1),
        tpm2: Flag,
    }
    pub(crate) CLEVIS_CUSTOM { config: Text, needsNetwork: Flag, pin: Text }
    pub(crate) TANG by "url" { advertisement: Text.since(4), thumbprint: Text, url: Text }
    pub(crate) RAID by "name" {
        devices: TEXTS, level: Text, name: Text.required(), options: TEXTS.appended(),
        spares: Integer.number_by_default(0),
    }
    pub(crate) SYSTEMD { units: List(UNIT) }
    pub(crate) UNIT by "name" {
        contents: Text, dropins: List(DROP_IN), enabled: Flag, mask: Flag, name: Text.required(),
    }
    pub(crate) DROP_IN by "name" { contents: Text, name: Text.required() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt;

    use ignition_config::{v3_0, v3_1, v3_2, v3_3, v3_4, v3_5};
    use serde::Deserialize;
    use serde::de::{self, Visitor, value::Error};

    use super::*;
    use crate::shape::Shape;

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
