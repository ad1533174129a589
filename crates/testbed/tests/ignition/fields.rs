//! Random configurations: every key of the specification, mostly with values that are fine and now and then with one that is
//! not.

use evenkeel_testbed::chance::Chance;
use serde_json::{Map, Value, json};

/// A key, values that are fine, and values that may not be; each as JSON.
type Field = (&'static str, Values, Values);

enum Values {
    These(&'static str),
    An(&'static [Field]),
    List(&'static [Field]),
}

use Values::{An, List, These};

const NONE: Values = These("[]");

const CONFIG: &[Field] = &[
    ("ignition", An(IGNITION), NONE),
    ("kernelArguments", An(KERNEL_ARGUMENTS), NONE),
    ("passwd", An(PASSWD), NONE),
    ("storage", An(STORAGE), NONE),
    ("systemd", An(SYSTEMD), NONE),
];
const IGNITION: &[Field] = &[
    ("config", An(REFERENCES), NONE),
    ("proxy", An(PROXY), NONE),
    ("security", An(SECURITY), NONE),
    (
        "timeouts",
        These(r#"[{"httpTotal": 5}, {}]"#),
        These(r#"[{"httpTotal": "5"}, {"httpTotal": 99999999999999999999}]"#),
    ),
];
const REFERENCES: &[Field] = &[
    ("merge", List(REFERENCE), NONE),
    ("replace", An(REFERENCE), NONE),
];
const REFERENCE: &[Field] = &[
    ("source", These(SOURCES), These(BAD_SOURCES)),
    (
        "compression",
        These(r#"["", "gzip"]"#),
        These(r#"["xz", "GZIP"]"#),
    ),
    ("verification", An(VERIFICATION), NONE),
    ("httpHeaders", List(HEADER), NONE),
];
const SOURCES: &str = r#"["https://example.com/a", "http://user:p%40ss@example.com:80/a?b=%20#c", "http://[::1]:8080/", "tftp://host/x",
    "s3://bucket/key?versionId=1", "gs://bucket/key", "arn:aws:s3:::bucket/key", "data:,a", "data:text/plain;base64,YQ=="]"#;
const BAD_SOURCES: &str = r#"["", "ftp://example.com", "example.com", "/a", "https://exa mple.com", "https://host:port/", "https://host/%zz",
    "http://[::1", "http://::1/", "http://a:1:2/", "s3://bucket/key?versionId=", "s3://bucket/key?a=1&versionId=&versionId=2", "arn:aws:s3:::bucket", "arn:aws:ec2:::a/b",
    "arn:aws:s3:r:1:accesspoint/a", "data:a", "data:,a b", "data:;base64,YQ", "DATA:,a", "https://a\nb", "HTTPS://example.com", "://a", "https:", "gs:a", "http://%41/",
    "http://a%25b/", "s3://b/k?version%49d=", "http://é.example/", "http://a@b@c/", "arn:aws:s3:::a/b?versionId=", "arn:aws:s3:a:b", "data:text/plain,%", "data:;a=b,c", "data:;a=%,c"]"#;
const VERIFICATION: &[Field] = &[(
    "hash",
    These(
        r#"["sha512-cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"]"#,
    ),
    These(
        r#"["", "md5-900150983cd24fb0d6963f7d28e17f72", "sha256", "sha256-00", "sha512-00", "sha1-0", "-",
        "sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]"#,
    ),
)];
const HEADER: &[Field] = &[
    ("name", These(r#"["Accept", "Host"]"#), These(r#"[""]"#)),
    ("value", These(r#"["a", "b"]"#), These(r#"["", null]"#)),
];
const PROXY: &[Field] = &[
    (
        "httpProxy",
        These(r#"["http://proxy:3128", "https://proxy"]"#),
        These(r#"["", "proxy:3128", "socks5://proxy", "proxy", "http://a b"]"#),
    ),
    (
        "httpsProxy",
        These(r#"["https://proxy:3128"]"#),
        These(r#"["http://proxy", "", "ftp://proxy", "%"]"#),
    ),
    (
        "noProxy",
        These(r#"[["a"], ["a", "b"], []]"#),
        These(r#"[["a", "a"]]"#),
    ),
];
const SECURITY: &[Field] = &[(
    "tls",
    An(&[("certificateAuthorities", List(REFERENCE), NONE)]),
    NONE,
)];
const ARGUMENTS: Values = These(r#"[["a"], ["b=1"], []]"#);
const KERNEL_ARGUMENTS: &[Field] = &[
    ("shouldExist", ARGUMENTS, These(r#"[["a", "a"]]"#)),
    ("shouldNotExist", These(r#"[["c"]]"#), These(r#"[["a"]]"#)),
];
const PASSWD: &[Field] = &[
    ("users", List(USER), NONE),
    (
        "groups",
        These(r#"[[{"name": "a", "gid": 5}], []]"#),
        These(r#"[[{"name": "a"}, {"name": "a"}], [{"name": ""}, {"name": ""}], [{}]]"#),
    ),
];
const USER: &[Field] = &[
    (
        "name",
        These(r#"["core", "app", "x"]"#),
        These(r#"["", null]"#),
    ),
    (
        "sshAuthorizedKeys",
        These(r#"[["ssh-ed25519 A"], ["ssh-ed25519 A", "ssh-ed25519 B"]]"#),
        These(r#"[["k", "k"], ["", ""]]"#),
    ),
    ("groups", These(r#"[["wheel"]]"#), These(r#"[["a", "a"]]"#)),
    ("uid", These("[1000]"), These(r#"[1.5, "1"]"#)),
    ("shouldExist", These("[true]"), NONE),
];
const STORAGE: &[Field] = &[
    ("files", List(FILE), NONE),
    ("directories", List(DIRECTORY), NONE),
    ("links", List(LINK), NONE),
    ("disks", List(DISK), NONE),
    ("filesystems", List(FILESYSTEM), NONE),
    ("raid", List(RAID), NONE),
    ("luks", List(LUKS), NONE),
];
const OWNER: Values = These(r#"[{"id": 0}, {"name": "app"}, {"id": 5, "name": ""}, {}]"#);
const BAD_OWNER: Values = These(r#"[{"id": 5, "name": "app"}]"#);
const BAD_MODE: Values = These("[-1, 4096, 420.5]");
const FILE: &[Field] = &[
    (
        "path",
        These(r#"["/etc/a", "/etc/b", "/etc/c/d", "/e", "/f"]"#),
        These(BAD_PATHS),
    ),
    ("contents", An(CONTENTS), NONE),
    ("mode", These("[420, 493]"), BAD_MODE),
    ("overwrite", These("[true, false]"), These(r#"["true"]"#)),
    ("user", OWNER, BAD_OWNER),
    ("group", OWNER, BAD_OWNER),
];
const BAD_PATHS: &str = r#"["", "a", "/etc//a", "/etc/./a", "/etc/../a", "/etc/a/", "/", "/etc/systemd/system/a.service",
    "/etc/systemd/system/a.service.d/a.conf", "/link/a", "/etc/a/b", null]"#;
const CONTENTS: &[Field] = &[
    (
        "source",
        These(
            r#"["data:,a", "data:,a%20b", "data:;base64,YQ==", "data:text/plain;charset=utf-8;base64,YQ==", "data:,a'b(c)*d!e~f,g;h:i@j&k=l+m$n/o?p", "data:,", ""]"#,
        ),
        These(
            r#"["data:", "data:a", "data:;base64,YQ", "data:;base64,YQ=", "data:;base64,Y Q==", "data:;base64,YQ==\n", "data:;base64,YR==", "data:;base64,Y-__",
            "data:;base64,%59Q==", "data:;BASE64,YQ==", "data:text,a", "data:text/,a", "data:/plain,a", "data:x-a/b,a", "data:font/a,b", "data:,a b", "data:,a\"b", "data:,{}", "data:,a#b",
            "data:,é", "data:,%", "data:,%4", "data:,%zz", "data:,a\nb", "data:;a=\"b\",c", "data:;a=\"b,c\",d", "data:;a=,b", "data:;=a,b", "data:;;,a", "data:;a,b", "data:;base64;a=b,YQ==",
            "Data:,a", "data:text/plain;a=b\\,c", " data:,a", null, 5]"#,
        ),
    ),
    ("compression", These(r#"[""]"#), These(r#"["gzip", "xz"]"#)),
    ("verification", An(VERIFICATION), NONE),
    (
        "httpHeaders",
        These("[[]]"),
        These(r#"[[{"name": "a", "value": "b"}]]"#),
    ),
];
const DIRECTORY: &[Field] = &[
    (
        "path",
        These(r#"["/d", "/d/e", "/var/x"]"#),
        These(BAD_PATHS),
    ),
    ("mode", These("[493]"), BAD_MODE),
    ("user", OWNER, BAD_OWNER),
    ("overwrite", These("[true]"), NONE),
];
const LINK: &[Field] = &[
    ("path", These(r#"["/link", "/l", "/m"]"#), These(BAD_PATHS)),
    (
        "target",
        These(r#"["/etc/a", "../d", "x"]"#),
        These(r#"["", "/d", "/d/", "../d/e", null]"#),
    ),
    ("target", These(r#"["/etc/a"]"#), NONE),
    ("hard", These("[false]"), These("[true]")),
    ("group", OWNER, BAD_OWNER),
];
const DEVICES: Values = These(r#"["/dev/sda", "/dev/sdb", "/dev/disk/by-id/x"]"#);
const BAD_DEVICES: Values = These(r#"["", "sda", "/dev//sda", "/dev/", null]"#);
const DISK: &[Field] = &[
    ("device", DEVICES, BAD_DEVICES),
    ("device", DEVICES, NONE),
    ("partitions", List(PARTITION), NONE),
    ("wipeTable", These("[true]"), NONE),
];
const PARTITION: &[Field] = &[
    (
        "label",
        These(r#"["root", "var", "boot"]"#),
        These(r#"["", "a:b", "0123456789012345678901234567890123456"]"#),
    ),
    ("number", These("[1, 2, 3, 4]"), These("[0, -1]")),
    (
        "startMiB",
        These("[100, 2000, 30000]"),
        These("[0, 50, -5]"),
    ),
    ("sizeMiB", These("[100, 0]"), These("[5000, -10]")),
    ("shouldExist", These("[true]"), These("[false]")),
    (
        "guid",
        These(r#"["", "01234567-89ab-CDEF-0123-456789abcdef"]"#),
        These(
            r#"["x", "0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcdeg"]"#,
        ),
    ),
    (
        "typeGuid",
        These(r#"["01234567-89ab-CDEF-0123-456789abcdef"]"#),
        These(r#"["{01234567-89ab-cdef-0123-456789abcdef}"]"#),
    ),
];
const FILESYSTEM: &[Field] = &[
    ("device", DEVICES, BAD_DEVICES),
    ("device", DEVICES, NONE),
    (
        "format",
        These(r#"["ext4", "xfs", "btrfs", "vfat", "swap"]"#),
        These(r#"["none", "ntfs", "", null]"#),
    ),
    (
        "format",
        These(r#"["ext4", "xfs", "btrfs", "vfat", "swap"]"#),
        NONE,
    ),
    (
        "path",
        These(r#"["/var", ""]"#),
        These(r#"["var", "/var/"]"#),
    ),
    (
        "label",
        These(r#"["a"]"#),
        These(r#"["0123456789ab", "0123456789abc", "0123456789abcdef", "0123456789abcdefg"]"#),
    ),
    ("mountOptions", These(r#"[["ro", "ro"]]"#), NONE),
    ("options", These(r#"[["-x", "-x"]]"#), NONE),
    ("wipeFilesystem", These("[true]"), NONE),
];
const RAID: &[Field] = &[
    (
        "name",
        These(r#"["md0", "md1", "a"]"#),
        These(r#"["", null]"#),
    ),
    (
        "level",
        These(r#"["raid1", "5", "linear", "stripe", "mirror"]"#),
        These(r#"["", "raid7", null]"#),
    ),
    (
        "level",
        These(r#"["raid1", "5", "linear", "stripe", "mirror"]"#),
        NONE,
    ),
    (
        "devices",
        These(r#"[["/dev/sda", "/dev/sdb"]]"#),
        These(r#"[[], ["a", "a"], null]"#),
    ),
    ("devices", These(r#"[["/dev/sda", "/dev/sdb"]]"#), NONE),
    ("spares", These("[0]"), These("[1, -1]")),
];
const LUKS: &[Field] = &[
    (
        "name",
        These(r#"["root", "data", "b"]"#),
        These(r#"["", "a/b", null]"#),
    ),
    ("device", DEVICES, BAD_DEVICES),
    ("device", DEVICES, NONE),
    (
        "label",
        These(r#"["a"]"#),
        These(r#"["012345678901234567890123456789012345678901234567"]"#),
    ),
    ("keyFile", An(REFERENCE), NONE),
    ("clevis", An(CLEVIS), NONE),
    (
        "cex",
        These(r#"[{"enabled": false}]"#),
        These(r#"[{"enabled": true}]"#),
    ),
    ("openOptions", These(r#"[["a"]]"#), These(r#"[["a", "a"]]"#)),
    ("options", These(r#"[["a", "a"]]"#), NONE),
];
const CLEVIS: &[Field] = &[
    ("tpm2", These("[true, false]"), NONE),
    ("threshold", These("[0, 1]"), These("[-1]")),
    ("tang", List(TANG), NONE),
    (
        "custom",
        These(r#"[{"pin": "tpm2", "config": "{}"}]"#),
        These(
            r#"[{}, {"pin": "x", "config": "{}"}, {"pin": "sss"}, {"config": "{}"}, {"needsNetwork": true}]"#,
        ),
    ),
];
const TANG: &[Field] = &[
    (
        "url",
        These(r#"["https://tang.example", "http://tang.example:7500"]"#),
        These(r#"["", "tang.example", "ftp://a", null]"#),
    ),
    ("thumbprint", These(r#"["x"]"#), These(r#"["", null]"#)),
    ("thumbprint", These(r#"["x"]"#), NONE),
    ("advertisement", These(r#"["{}"]"#), These(r#"["{", "x"]"#)),
];
const SYSTEMD: &[Field] = &[("units", List(UNIT), NONE)];
const UNIT: &[Field] = &[
    (
        "name",
        These(r#"["a.service", "b@.service", "c.timer", "d.mount"]"#),
        These(r#"["", "a", "a.snapshot", "a.conf", "a/b.service", null]"#),
    ),
    ("contents", These(TEXTS), These(BAD_TEXTS)),
    ("enabled", These("[true, false]"), NONE),
    ("mask", These("[true, false]"), NONE),
    ("dropins", List(DROP_IN), NONE),
];
const DROP_IN: &[Field] = &[
    (
        "name",
        These(r#"["a.conf", "b.conf", "10-c.conf"]"#),
        These(r#"["", "a", ".conf", null]"#),
    ),
    ("contents", These(TEXTS), These(BAD_TEXTS)),
];
const TEXTS: &str = r##"["[Unit]\nDescription=a\n\n[Install]\nWantedBy=multi-user.target\n", "# comment\n[Service]\nExecStart=/bin/a \\\n  --b\n", "", "[Service]\nEnvironment=\n"]"##;
const BAD_TEXTS: &str = r#"["[Unit] A=b\n", "[Unit]x", "[Unit", "A=b\n[Unit]\n", "[Unit]\nA\n", "[Unit]\nA", "[Unit]\nA\rb=c\n", "[Unit]\n# a \\\nb\nA=c\n", "[Unit]\n# a \\ \nb\n",
    "[Unit]\nA=b\\\r\nc\n", "[Unit]\nA=b\\\n\nc\n", "[Unit]\nA=b \\\nc", "[Unit]\r\nA=b\r\n", "x", "\u00a0[Unit]\n", "[Unit]\n=b\n", "[]\n", "[Unit]\nA=\\\n[x\n", "[a]b]\n"]"#;

/// A whole configuration.
pub(crate) fn config(chance: &mut Chance) -> Value {
    // Most of them have one or two things that may be wrong: of many, one hides the others.
    let odds = [0, 0, 8, 30, 100][chance.below(5)];
    let mut config = object(CONFIG, odds, chance);
    let minor = [0, 1, 2, 3, 4, 5, 5, 5, 5][chance.below(9)];
    if !config["ignition"].is_object() {
        config["ignition"] = json!({});
    }
    config["ignition"]["version"] = format!("3.{minor}.0").into();
    if chance.below(20) == 0
        && let Some(units) = config["systemd"]["units"].as_array_mut()
    {
        let long = "x".repeat(2030 + chance.below(40));
        let contents = format!("[Unit]\nDescription={long}\n{}", "# more\n".repeat(400));
        units.push(json!({ "name": "long.service", "contents": contents }));
    }
    config
}

/// One in `odds` values is one that may be wrong; with 0 none is.
fn object(fields: &[Field], odds: usize, chance: &mut Chance) -> Value {
    let mut object = Map::new();
    for (key, fine, wrong) in fields {
        let must = [
            "path",
            "name",
            "device",
            "source",
            "url",
            "thumbprint",
            "target",
            "level",
            "devices",
            "format",
            "pin",
        ];
        let skipped = if must.contains(key) {
            0
        } else {
            chance.below(3)
        };
        if skipped != 0 {
            continue;
        }
        let is_wrong = odds > 0 && chance.below(odds) == 0;
        let values = match wrong {
            These(text) if is_wrong && *text != "[]" => wrong,
            _ => fine,
        };
        object.insert((*key).to_owned(), value(values, odds, chance));
    }
    Value::Object(object)
}

fn value(values: &Values, odds: usize, chance: &mut Chance) -> Value {
    match values {
        These(text) => {
            let Ok(Value::Array(choices)) = serde_json::from_str(text) else {
                panic!("{text} is no list");
            };
            choices[chance.below(choices.len())].clone()
        }
        An(fields) => object(fields, odds, chance),
        List(fields) => {
            let items = (0..chance.below(3)).map(|_| object(fields, odds, chance));
            Value::Array(items.collect())
        }
    }
}
