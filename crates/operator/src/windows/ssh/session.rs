//! One connection to an instance: whoever answers is who answered the first time, and every word has a
//! deadline.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::client::{self, Handle};
use russh::keys::ssh_key::HashAlg;
use russh::keys::{Algorithm, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate};
use russh::{ChannelMsg, Disconnect, Preferred};
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Error, Key, Result, Ssh};

/// How long a connection may take, and then each of greeting and login.
const CONNECT: Duration = Duration::from_secs(10);
const GREET: Duration = Duration::from_secs(15);
/// After so long without a word the other side is asked for one; three times without an answer it is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How much of what a command says is kept.
const WORDS: usize = 64 * 1024;
const PORT: u16 = 22;

/// Whom to reach, and as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// As people call it.
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) user: String,
    /// The host key it had the first time.
    pub(crate) host_key: Option<String>,
}

/// A connection.
pub(crate) struct Session {
    pub(super) ssh: Ssh,
    pub(super) handle: Arc<Handle<Door>>,
    /// Ends with the connection.
    pub(super) line: watch::Receiver<()>,
    /// The host key that it has.
    pub(crate) host_key: String,
}

/// Who answers, as far as known.
pub(super) struct Door {
    pinned: Option<String>,
    seen: Arc<Mutex<Option<String>>>,
    /// Whoever holds the other end learns when the connection is gone, and this with it.
    _line: watch::Sender<()>,
}

impl client::Handler for Door {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        key: &PublicKeyOrCertificate,
    ) -> std::result::Result<bool, Self::Error> {
        let mut key = key.public_key();
        key.set_comment("");
        let key = key.to_openssh().map_err(|_| russh::Error::UnknownKey)?;
        let fits = self.pinned.as_ref().is_none_or(|it| *it == key);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
        Ok(fits)
    }
}

impl Ssh {
    /// Connects and logs in.
    pub(crate) async fn connect(&self, target: &Target, key: &Key) -> Result<Session> {
        let (target, key, ssh) = (target.clone(), key.clone(), self.clone());
        self.run(async move { connect(ssh, &target, key).await })
            .await
    }
}

async fn connect(ssh: Ssh, target: &Target, key: Key) -> Result<Session> {
    let place = SocketAddr::new(target.address, PORT);
    let stream = match timeout(CONNECT, TcpStream::connect(place)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(Error::Unreachable(error.to_string())),
        Err(_) => {
            let why = format!("no answer within {}s", CONNECT.as_secs());
            return Err(Error::Unreachable(why));
        }
    };
    // An answer waits for nothing.
    _ = stream.set_nodelay(true);
    let seen = Arc::<Mutex<Option<String>>>::default();
    let (ended, line) = watch::channel(());
    let door = Door {
        pinned: target.host_key.clone(),
        seen: seen.clone(),
        _line: ended,
    };
    let greeted = client::connect_stream(Arc::new(config(target)), stream, door);
    let silent = |doing| Error::Silent {
        doing,
        limit: GREET,
    };
    let greeted = timeout(GREET, greeted).await;
    let host_key = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut handle = match greeted {
        Err(_) => return Err(silent("greeting")),
        Ok(Ok(handle)) => handle,
        Ok(Err(error)) => {
            return Err(match (&target.host_key, host_key) {
                (Some(was), Some(is)) if *was != is => Error::HostKeyChanged {
                    address: target.name.clone(),
                    was: fingerprint(was),
                    is: fingerprint(&is),
                },
                _ => error.into(),
            });
        }
    };
    let login = async {
        let hash = handle.best_supported_rsa_hash().await?.flatten();
        let key = PrivateKeyWithHashAlg::new(key.0.clone(), hash);
        handle.authenticate_publickey(&target.user, key).await
    };
    let login = timeout(GREET, login).await;
    if !login.map_err(|_| silent("logging in"))??.success() {
        return Err(Error::Refused {
            user: target.user.clone(),
            public: key.public(),
        });
    }
    Ok(Session {
        ssh,
        handle: Arc::new(handle),
        line,
        host_key: host_key.unwrap_or_default(),
    })
}

fn config(target: &Target) -> client::Config {
    let mut preferred = Preferred::DEFAULT;
    // Whichever of its keys it showed the first time it is to show again.
    let pinned = target.host_key.as_deref();
    let pinned = pinned.and_then(|it| PublicKey::from_openssh(it).ok());
    if let Some(pinned) = pinned {
        let is_same = |it: &Algorithm| {
            let same_kind = matches!(
                (it, pinned.algorithm()),
                (Algorithm::Rsa { .. }, Algorithm::Rsa { .. })
            );
            same_kind || *it == pinned.algorithm()
        };
        let only: Vec<_> = preferred
            .key
            .iter()
            .filter(|it| is_same(it))
            .cloned()
            .collect();
        let others: Vec<_> = preferred
            .key
            .iter()
            .filter(|it| !is_same(it))
            .cloned()
            .collect();
        preferred.key = Cow::Owned([only, others].concat());
    }
    // What processors do by themselves comes first.
    preferred.cipher = Cow::Borrowed(&[
        russh::cipher::AES_128_GCM,
        russh::cipher::AES_256_GCM,
        russh::cipher::CHACHA20_POLY1305,
        russh::cipher::AES_256_CTR,
        russh::cipher::AES_128_CTR,
    ]);
    client::Config {
        keepalive_interval: Some(KEEP_ALIVE),
        preferred,
        nodelay: true,
        ..client::Config::default()
    }
}

/// A host key, short enough to read aloud.
pub(crate) fn fingerprint(key: &str) -> String {
    PublicKey::from_openssh(key).map_or_else(
        |_| "unreadable".to_owned(),
        |key| key.fingerprint(HashAlg::Sha256).to_string(),
    )
}

impl Session {
    /// What a command of the instance prints, if it ends well within `limit`.
    pub(crate) async fn run(&self, command: &str, limit: Duration) -> Result<String> {
        let (handle, line) = (self.handle.clone(), command.to_owned());
        let ended = self.ssh.run(async move { run(&handle, &line).await });
        let Ok(ended) = timeout(limit, ended).await else {
            return Err(Error::Command {
                command: command.to_owned(),
                code: "no exit code".to_owned(),
                words: format!("it did not finish within {}s", limit.as_secs()),
            });
        };
        let ended = ended?;
        if ended.code == Some(0) {
            return Ok(ended.said);
        }
        // The last line says what failed; those before are how it came to that.
        let complaints = ended.complaints.trim();
        let words = if complaints.is_empty() {
            ended.said.trim()
        } else {
            complaints
        };
        let last: Vec<_> = words.lines().rev().take(3).collect();
        Err(Error::Command {
            command: command.to_owned(),
            code: ended
                .code
                .map_or("no exit code".to_owned(), |it| it.to_string()),
            words: last.into_iter().rev().collect::<Vec<_>>().join(" "),
        })
    }

    /// The JSON that a command of the agent answers.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        command: &str,
        limit: Duration,
    ) -> Result<T> {
        let answer = self.run(command, limit).await?;
        let last = answer.lines().rev().find(|it| !it.trim().is_empty());
        serde_json::from_str(last.unwrap_or_default()).map_err(|error| Error::Answer {
            command: command.to_owned(),
            answer: format!("{error}: {answer}"),
        })
    }

    /// Says good-bye. One who is gone already does not hear it.
    pub(crate) async fn close(self) {
        let handle = self.handle.clone();
        let bye = self
            .ssh
            .run(async move { Ok(handle.disconnect(Disconnect::ByApplication, "", "").await?) });
        _ = timeout(CONNECT, bye).await;
    }
}

#[derive(Default)]
struct Words {
    said: String,
    complaints: String,
    code: Option<u32>,
}

async fn run(handle: &Handle<Door>, line: &str) -> Result<Words> {
    let mut channel = handle.channel_open_session().await?;
    channel.exec(true, line).await?;
    let mut words = Words::default();
    let (mut said, mut complaints) = (Vec::new(), Vec::new());
    while let Some(message) = channel.wait().await {
        match message {
            ChannelMsg::Data { data } => keep(&mut said, &data),
            ChannelMsg::ExtendedData { data, .. } => keep(&mut complaints, &data),
            ChannelMsg::ExitStatus { exit_status } => words.code = Some(exit_status),
            _ => {}
        }
    }
    if words.code.is_none() {
        return Err(Error::Broken(format!("before `{line}` ended")));
    }
    words.said = String::from_utf8_lossy(&said).into_owned();
    words.complaints = String::from_utf8_lossy(&complaints).into_owned();
    Ok(words)
}

/// Keeps the end of what somebody says.
fn keep(kept: &mut Vec<u8>, more: &[u8]) {
    kept.extend_from_slice(more);
    if kept.len() > 2 * WORDS {
        kept.drain(..kept.len() - WORDS);
    }
}
