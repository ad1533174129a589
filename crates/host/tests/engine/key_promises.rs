//! Where the engine puts SSH keys, and whose it makes them: on every machine, as its name service and its sshd say.

use evenkeel_host::Error;
use evenkeel_host::disk::Disk;
use evenkeel_plan::machine::entry::{Entry, Hash, Ids};
use evenkeel_plan::machine::ssh_keys::Account;

use crate::configs::Config;
use crate::machine::{Machine, every_ready_machine};

const KEY: &str = "ssh-ed25519 AAAA one";

/// Somebody to whom files can be given here.
fn ids(machine: &Machine) -> Ids {
    if machine.gives_files_away() {
        Ids {
            user: 1234,
            group: 4321,
        }
    } else {
        Ids::default()
    }
}

fn core(machine: &Machine, home: &str) -> Account {
    Account {
        name: "core".to_owned(),
        ids: ids(machine),
        home: home.to_owned(),
    }
}

fn keys(machine: &Machine) -> Entry {
    Entry::File {
        hash: Hash::of(format!("{KEY}\n").as_bytes()),
        mode: 0o600,
        owner: ids(machine),
    }
}

fn in_passwd(machine: &Machine, home: &str) {
    let Ids { user, group } = ids(machine);
    let line = format!("core:x:{user}:{group}::{home}:/bin/sh\n");
    machine.file("/etc/passwd", &line, 0o644);
}

/// Covers O13.
#[test]
fn keys_stand_where_sshd_reads_them_and_are_the_users_own() {
    every_ready_machine(|machine| {
        in_passwd(machine, "/home/core");
        let config = Config::default().keys(&[KEY]);
        for (printed, path) in [
            (
                "authorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2\nauthorizedkeyscommand none\n",
                "/home/core/.ssh/authorized_keys",
            ),
            (
                "authorizedkeysfile /etc/ssh/keys/%u\n",
                "/etc/ssh/keys/core",
            ),
            (
                "authorizedkeysfile none\nauthorizedkeyscommand /usr/libexec/ssh-key-dir %u\n",
                "/home/core/.ssh/authorized_keys.d/ignition",
            ),
        ] {
            let before = machine.tree();
            machine.accounts.sshd_prints(printed);
            machine.bring(&config).unwrap();
            assert_eq!(machine.disk.look(path).unwrap(), keys(machine), "{path}");
            let ours: Vec<String> = machine.tree().into_keys().collect();
            let files = ours
                .iter()
                .filter(|it| it.ends_with("/core") || it.contains("authorized_keys"));
            let files: Vec<_> = files
                .filter(|it| machine.disk.read(it).is_ok_and(|text| text.is_some()))
                .collect();
            assert_eq!(files, [path], "keys stand in one place");
            machine.bring(&Config::default()).unwrap();
            assert_eq!(machine.tree(), before);
        }
    });
}

/// Covers O13.
#[test]
fn the_folder_for_keys_is_private_wherever_the_home_is() {
    every_ready_machine(|machine| {
        machine.folder("/srv/people/core");
        in_passwd(machine, "/srv/people/core");
        machine.bring(&Config::default().keys(&[KEY])).unwrap();
        let folder = Entry::Directory {
            mode: 0o700,
            owner: ids(machine),
        };
        let at = |path| machine.disk.look(path).unwrap();
        assert_eq!(at("/srv/people/core/.ssh"), folder);
        assert_eq!(at("/srv/people/core/.ssh/authorized_keys"), keys(machine));
    });
}

/// Covers O13.
#[test]
fn a_home_with_two_names_is_one_home() {
    every_ready_machine(|machine| {
        machine.folder("/var/home/core");
        machine.link("/home", "var/home");
        // As the configuration was applied by somebody who knew the home by its other name.
        in_passwd(machine, "/home/core");
        let config = Config::default().keys(&[KEY]);
        machine.bring(&config).unwrap();
        in_passwd(machine, "/var/home/core");
        assert_eq!(machine.plan(&config).unwrap().steps, []);
        let path = "/var/home/core/.ssh/authorized_keys";
        assert_eq!(machine.disk.look(path).unwrap(), keys(machine));
    });
}

/// Covers O13.
#[test]
fn users_that_only_the_name_service_knows_own_files_and_keys() {
    every_ready_machine(|machine| {
        machine.folder("/var/home/core");
        machine.accounts.know_user(core(machine, "/var/home/core"));
        machine.accounts.know_group("staff", ids(machine).group);
        let mut config = Config::default().keys(&[KEY]).file("/etc/a", "a", 0o640);
        for file in config.0.files.values_mut() {
            file.user = evenkeel_api::machine::machine_config::Owner::Name("core".to_owned());
            file.group = evenkeel_api::machine::machine_config::Owner::Name("staff".to_owned());
        }
        machine.bring(&config).unwrap();
        let path = "/var/home/core/.ssh/authorized_keys";
        assert_eq!(machine.disk.look(path).unwrap(), keys(machine));
        let file = Entry::File {
            hash: Hash::of(b"a"),
            mode: 0o640,
            owner: ids(machine),
        };
        assert_eq!(machine.disk.look("/etc/a").unwrap(), file);
    });
}

/// Covers O13.
#[test]
fn users_of_the_image_are_found_where_nobody_can_be_asked() {
    every_ready_machine(|machine| {
        let Ids { user, group } = ids(machine);
        let line = format!("core:x:{user}:{group}::/var/home/core:/bin/sh\n");
        machine.folder("/var/home/core");
        machine.file("/usr/lib/passwd", &line, 0o644);
        machine.bring(&Config::default().keys(&[KEY])).unwrap();
        let path = "/var/home/core/.ssh/authorized_keys";
        assert_eq!(machine.disk.look(path).unwrap(), keys(machine));
    });
}

/// Covers O13.
#[test]
fn keys_that_would_not_last_are_refused_before_anything_is_written() {
    every_ready_machine(|machine| {
        in_passwd(machine, "/home/core");
        machine.file("/home/core/.ssh/authorized_keys.d/people", "theirs", 0o600);
        machine.file("/usr/bin/update-ssh-keys", "", 0o755);
        machine
            .accounts
            .sshd_prints("authorizedkeysfile .ssh/authorized_keys\n");
        let before = machine.tree();
        let config = Config::default().keys(&[KEY]).file("/etc/a", "a", 0o644);
        let error = machine.bring(&config).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        assert!(
            text.contains("passwd.users core: update-ssh-keys"),
            "{text}"
        );
        assert!(text.contains("let sshd read a file beside it"), "{text}");
        assert_eq!(machine.tree(), before);
        // A configuration without keys asks nobody.
        machine
            .bring(&Config::default().file("/etc/a", "a", 0o644))
            .unwrap();
    });
}
