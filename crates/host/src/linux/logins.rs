//! People who log in over SSH, as logind tells, and how they are warned.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use zbus::wire::OwnedObjectPath;
use zbus::{Connection, Proxy};

use super::LinuxHost;
use super::systemd::Systemd;
use crate::{Error, Result};

const LOGIND: &str = "org.freedesktop.login1";
const MANAGER_PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SESSION: &str = "org.freedesktop.login1.Session";
/// The name that the SSH server gives itself, whatever its program is called.
const SSH_SERVER: &str = "sshd";
/// A terminal comes after its session, if one comes at all.
const TERMINAL: (u32, Duration) = (20, Duration::from_millis(100));

/// Somebody's session over SSH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// Its name in logind.
    pub session: String,
    /// Who.
    pub user: String,
    /// From where; empty if that is not known.
    pub from: String,
    user_id: u32,
}

impl LinuxHost {
    /// Tells of every session over SSH that is not `known` yet, those that are open now and those
    /// that come, until the bus ends. A machine without logind has none.
    pub async fn logins(
        &self,
        known: &mut BTreeSet<String>,
        mut tell: impl FnMut(Login) + Send,
    ) -> Result<()> {
        let Some(systemd) = &self.systemd else {
            return Ok(());
        };
        listen(systemd, known, &mut tell)
            .await
            .map_err(|error| Error::Services {
                doing: "watch logind for logins".to_owned(),
                source: Box::new(error),
            })
    }

    /// Writes `words` on every terminal of whoever logged in. A session without one is not told.
    pub async fn warn(&self, login: &Login, words: &str) {
        let Some(systemd) = &self.systemd else {
            return;
        };
        let (times, pause) = TERMINAL;
        let mut told = BTreeSet::new();
        for _ in 0..times {
            for terminal in terminals(systemd.root(), login.user_id) {
                if told.insert(terminal.clone()) {
                    write_to(&terminal, words);
                }
            }
            tokio::time::sleep(pause).await;
        }
    }
}

async fn listen(
    systemd: &Systemd,
    known: &mut BTreeSet<String>,
    tell: &mut (dyn FnMut(Login) + Send),
) -> zbus::Result<()> {
    let bus = systemd.connect().await?;
    let manager = Proxy::new(&bus, LOGIND, MANAGER_PATH, MANAGER).await?;
    // Listening before asking: whoever comes in between is told twice and heard once.
    let mut signals = manager.receive_signal("SessionNew").await?;
    let open: Vec<(String, u32, String, String, OwnedObjectPath)> =
        manager.call("ListSessions", &()).await?;
    for (session, _, _, _, path) in open {
        observe(&bus, session, path, known, tell).await;
    }
    while let Some(signal) = signals.next().await {
        let (session, path) = signal.body().deserialize::<(String, OwnedObjectPath)>()?;
        observe(&bus, session, path, known, tell).await;
    }
    Ok(())
}

/// A session that is gone before it could be looked at was nobody's.
async fn observe(
    bus: &Connection,
    session: String,
    path: OwnedObjectPath,
    known: &mut BTreeSet<String>,
    tell: &mut (dyn FnMut(Login) + Send),
) {
    if known.contains(&session) {
        return;
    }
    if let Ok(Some(login)) = look(bus, &session, path).await {
        tell(login);
    }
    known.insert(session);
}

async fn look(
    bus: &Connection,
    session: &str,
    path: OwnedObjectPath,
) -> zbus::Result<Option<Login>> {
    let proxy = Proxy::new(bus, LOGIND, path, SESSION).await?;
    let service: String = proxy.get_property("Service").await?;
    if service != SSH_SERVER {
        return Ok(None);
    }
    let (user_id, _): (u32, OwnedObjectPath) = proxy.get_property("User").await?;
    Ok(Some(Login {
        session: session.to_owned(),
        user: proxy.get_property("Name").await?,
        from: proxy.get_property("RemoteHost").await?,
        user_id,
    }))
}

/// The terminals that are the user's now.
fn terminals(root: &Path, user_id: u32) -> Vec<PathBuf> {
    let terminals = std::fs::read_dir(root.join("dev/pts"));
    terminals
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.metadata().is_ok_and(|it| it.uid() == user_id))
        .filter(|entry| entry.file_name() != "ptmx")
        .map(|entry| entry.path())
        .collect()
}

/// A terminal that nobody reads must not hold us up, nor become ours; whoever sits there is recorded
/// anyway.
fn write_to(terminal: &Path, words: &str) {
    let open = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
        .open(terminal);
    _ = open.and_then(|mut terminal| terminal.write_all(words.as_bytes()));
}
