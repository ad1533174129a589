//! Configurations by chance: few names, so that two of them meet in every way.

use std::collections::BTreeMap;

use evenkeel_api::machine::machine_config::Unit;
use evenkeel_plan::machine::entry::Ids;
pub(crate) use evenkeel_testbed::chance::{Chance, is_soak, seed};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config as Settings, RngAlgorithm, TestRng, TestRunner};

use crate::configs::{Config, POLICY, WANTED};

const PATHS: &[&str] = &[
    "/etc/theirs.conf",
    "/etc/alias.conf",
    "/etc/new.conf",
    "/etc/kubernetes/kubelet-ca.crt",
    "/opt/tool/bin/run",
    "/opt/tool/share/text",
    "/var/link/data",
    "/var/link/deep/data",
    POLICY,
];

/// Two configurations that a machine is brought to one after the other, and a number that decides
/// everything else.
pub(crate) type Pair = (Config, Config, u64);

pub(crate) fn pair() -> impl Strategy<Value = Pair> {
    (config(), config(), any::<u64>())
}

fn config() -> impl Strategy<Value = Config> {
    let file = (
        0..3_usize,
        select(vec![0o644, 0o600, 0o4755]),
        select(vec![0, 1000]),
    );
    let files = prop::collection::btree_map(select(PATHS), file, 0..5);
    let units = prop::collection::btree_map(
        select(vec!["ours", "quiet", "vendor", "started", "admin"]),
        unit(),
        0..4,
    );
    let image = select(vec!["", "os:1", "os:2"]);
    let arguments = prop::collection::vec(select(vec!["quiet", "a=1", "a=2"]), 0..4);
    let small = (0..4_usize, 0..3_usize, image, arguments);
    (files, units, small).prop_map(|(files, units, (app, keys, image, arguments))| {
        let mut config = Config::default()
            .keys(&["ssh-ed25519 A", "ssh-ed25519 B"][..keys])
            .boots(image, &arguments);
        for (path, (contents, mode, owner)) in files {
            let owner = Ids {
                user: owner,
                group: owner,
            };
            config = config.file_of(path, ["", "one\n", "two\nlines\n"][contents], mode, owner);
        }
        // The same path as a file, as a folder, as a deeper folder, or not at all.
        match app {
            1 => config = config.file("/etc/app", "all in one\n", 0o600),
            2 => config = config.file("/etc/app/a", "a\n", 0o644),
            3 => config = config.file("/etc/app/b/c", "c\n", 0o644),
            _ => {}
        }
        for (name, mut unit) in units {
            if matches!(name, "ours" | "quiet") && unit.contents.is_none() {
                unit.contents = Some(WANTED.to_owned());
            }
            // Two units cannot have one name: that is refused, and not what is tried here.
            unit.contents = unit
                .contents
                .map(|text| text.replace("other", &format!("other-{name}")));
            config = config.unit(&format!("{name}.service"), unit);
        }
        config
    })
}

fn unit() -> impl Strategy<Value = Unit> {
    let text = select(vec![
        WANTED.to_owned(),
        format!("[Service]\nNice=1\n{WANTED}"),
        format!("{WANTED}Alias=other.service\n"),
    ]);
    let drop_ins = prop::collection::btree_map(
        select(vec!["10-a.conf".to_owned(), "20-b.conf".to_owned()]),
        select(vec!["[Service]\n".to_owned(), "[Unit]\n".to_owned()]),
        0..3,
    );
    (
        prop::option::of(text),
        any::<Option<bool>>(),
        prop::bool::weighted(0.25),
        drop_ins,
    )
        .prop_map(|(contents, enabled, masked, drop_ins)| Unit {
            contents,
            enabled,
            masked,
            drop_ins: BTreeMap::from_iter(drop_ins),
        })
}

/// Tries `promise` on `usual` pairs, or on twenty times as many in a soak.
pub(crate) fn for_pairs(usual: u32, promise: impl Fn(&Pair)) {
    let (seed, cases) = (seed(), if is_soak() { 20 * usual } else { usual });
    eprintln!("proof: {cases} pairs of configurations, EVENKEEL_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let settings = Settings {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Settings::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(settings, rng);
    let done = runner.run(&pair(), |pair| {
        promise(&pair);
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}
