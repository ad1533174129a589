//! A machine that lies: an SSH server of our own with files in memory, which answers whatever it was told to answer, and
//! remembers who came and what was run.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Result};
use russh::keys::PrivateKey;
use russh::server::{Auth, ChannelOpenHandle, Config, Handler, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId};
use russh_sftp::protocol::{
    Attrs, Data, File, FileAttributes, Handle, Name, OpenFlags, Status, StatusCode,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::instances::bed::make_key;

/// Where the operator puts its agent.
const AGENT: &str = "/C:/k/evenkeel-agent.exe";

/// What a machine answers to a command: its words and its code.
pub(super) type Answer = Box<dyn Fn(&str) -> (String, u32) + Send + Sync>;

/// What somebody can find on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Thing {
    Folder,
    Link,
    File(Vec<u8>),
}

/// What a machine does, other than an honest one.
#[derive(Default)]
pub(super) struct Habits {
    /// What is on it before anybody comes.
    pub(super) things: Vec<(&'static str, Thing)>,
    /// Whether it has another host key each time.
    pub(super) changes_its_key: bool,
    /// Whether what is read of a file is something else than what was written.
    pub(super) garbles: bool,
}

impl Habits {
    /// Those of an honest machine.
    pub(super) const NONE: Self = Self {
        things: Vec::new(),
        changes_its_key: false,
        garbles: false,
    };
}

struct State {
    things: Mutex<BTreeMap<String, Thing>>,
    commands: Mutex<Vec<String>>,
    visits: AtomicUsize,
    habits: Habits,
    answer: Answer,
}

/// A machine that lies.
pub(super) struct LyingMachine {
    pub(super) address: IpAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl LyingMachine {
    /// Listens at port 22 of `address`.
    pub(super) async fn at(address: &str, habits: Habits, answer: Answer) -> Result<Self> {
        let address: IpAddr = address.parse().doing(|| "no address")?;
        let door = TcpListener::bind((address, 22)).await;
        let door = door.doing(|| format!("cannot listen at {address}"))?;
        let mut things = BTreeMap::from([
            ("/C:".to_owned(), Thing::Folder),
            ("/C:/Windows".to_owned(), Thing::Folder),
        ]);
        let own = habits.things.iter().cloned();
        things.extend(own.map(|(path, thing)| (path.to_owned(), thing)));
        let state = Arc::new(State {
            things: Mutex::new(things),
            commands: Mutex::default(),
            visits: AtomicUsize::default(),
            habits,
            answer,
        });
        let scratch = Scratch::new("liar")?;
        let keys = [new_key(&scratch, "first")?, new_key(&scratch, "second")?];
        let served = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = door.accept().await {
                let visit = served.visits.fetch_add(1, Ordering::SeqCst);
                let [first, second] = &keys;
                let changes = served.habits.changes_its_key && visit > 0;
                let key = if changes { second } else { first };
                let config = Config {
                    keys: vec![key.clone()],
                    ..Config::default()
                };
                let visitor = Visitor {
                    state: Arc::clone(&served),
                    channels: HashMap::new(),
                };
                tokio::spawn(async move {
                    let served = russh::server::run_stream(Arc::new(config), stream, visitor).await;
                    if let Ok(session) = served {
                        _ = session.await;
                    }
                });
            }
        });
        Ok(Self {
            address,
            state,
            task,
        })
    }

    /// How often somebody knocked.
    pub(super) fn visits(&self) -> usize {
        self.state.visits.load(Ordering::SeqCst)
    }

    /// All that was run on it.
    pub(super) fn commands(&self) -> Vec<String> {
        locked(&self.state.commands).clone()
    }

    /// How often a program in our folder was run.
    pub(super) fn runs_of_agent(&self) -> usize {
        let commands = self.commands();
        let is_in_our_folder = |it: &&String| it.starts_with(r"C:\k\");
        commands.iter().filter(is_in_our_folder).count()
    }

    /// What is at a place.
    pub(super) fn thing(&self, path: &str) -> Option<Thing> {
        locked(&self.state.things).get(path).cloned()
    }

    /// What is on it, by path.
    pub(super) fn paths(&self) -> Vec<String> {
        locked(&self.state.things).keys().cloned().collect()
    }
}

impl Drop for LyingMachine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn new_key(scratch: &Scratch, name: &str) -> Result<PrivateKey> {
    let path = scratch.path().join(name);
    make_key(&path, &["-t", "ed25519"])?;
    let text = std::fs::read_to_string(path).doing(|| "no host key")?;
    PrivateKey::from_openssh(text).doing(|| "no host key")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Visitor {
    state: Arc<State>,
    channels: HashMap<ChannelId, Channel<Msg>>,
}

impl Handler for Visitor {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        _: &str,
        _: VerifiedPublicKey<'_>,
    ) -> std::result::Result<Auth, Self::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> std::result::Result<(), Self::Error> {
        self.channels.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        id: ChannelId,
        line: &[u8],
        session: &mut Session,
    ) -> std::result::Result<(), Self::Error> {
        let line = String::from_utf8_lossy(line).into_owned();
        let (words, code) = (self.state.answer)(&line);
        locked(&self.state.commands).push(line);
        session.channel_success(id)?;
        // Not from here: whoever has much to say must be listened to meanwhile.
        let channel = self.channels.remove(&id);
        tokio::spawn(async move {
            let Some(channel) = channel else { return };
            if code == 0 {
                _ = channel.data(words.as_bytes()).await;
            } else {
                _ = channel.extended_data(1, words.as_bytes()).await;
            }
            _ = channel.exit_status(code).await;
            _ = channel.eof().await;
            _ = channel.close().await;
        });
        Ok(())
    }

    async fn subsystem_request(
        &mut self,
        id: ChannelId,
        _: &str,
        session: &mut Session,
    ) -> std::result::Result<(), Self::Error> {
        session.channel_success(id)?;
        if let Some(channel) = self.channels.remove(&id) {
            let state = Arc::clone(&self.state);
            let disk = Disk { state, read: None };
            russh_sftp::server::run(channel.into_stream(), disk).await;
        }
        Ok(())
    }
}

/// Its files, as one visitor goes through them.
struct Disk {
    state: Arc<State>,
    /// The folder that was listed last.
    read: Option<String>,
}

impl Disk {
    fn attributes(&self, path: &str) -> std::result::Result<FileAttributes, StatusCode> {
        let things = locked(&self.state.things);
        let thing = things.get(path).ok_or(StatusCode::NoSuchFile)?;
        let (mode, size) = match thing {
            Thing::Folder => (0o040_755, 0),
            Thing::Link => (0o120_777, 0),
            Thing::File(bytes) => (0o100_644, bytes.len()),
        };
        Ok(FileAttributes {
            size: u64::try_from(size).ok(),
            permissions: Some(mode),
            ..FileAttributes::empty()
        })
    }
}

fn done(id: u32) -> Status {
    Status {
        id,
        status_code: StatusCode::Ok,
        error_message: String::new(),
        language_tag: String::new(),
    }
}

type Said<T> = std::result::Result<T, StatusCode>;

impl russh_sftp::server::Handler for Disk {
    type Error = StatusCode;

    fn unimplemented(&self) -> StatusCode {
        StatusCode::OpUnsupported
    }

    async fn open(
        &mut self,
        id: u32,
        path: String,
        flags: OpenFlags,
        _: FileAttributes,
    ) -> Said<Handle> {
        let mut things = locked(&self.state.things);
        if flags.contains(OpenFlags::CREATE) {
            let empty = Thing::File(Vec::new());
            things.entry(path.clone()).or_insert(empty);
        }
        match things.get(&path) {
            Some(Thing::File(_)) => Ok(Handle { id, handle: path }),
            _ => Err(StatusCode::NoSuchFile),
        }
    }

    async fn close(&mut self, id: u32, _: String) -> Said<Status> {
        Ok(done(id))
    }

    async fn read(&mut self, id: u32, path: String, offset: u64, len: u32) -> Said<Data> {
        let things = locked(&self.state.things);
        let Some(Thing::File(bytes)) = things.get(&path) else {
            return Err(StatusCode::NoSuchFile);
        };
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = bytes.get(at..).unwrap_or_default();
        let count = rest.len().min(usize::try_from(len).unwrap_or(0));
        if count == 0 {
            return Err(StatusCode::Eof);
        }
        let mut data = rest.get(..count).unwrap_or_default().to_vec();
        if self.state.habits.garbles && path == AGENT {
            data.fill(0);
        }
        Ok(Data { id, data })
    }

    async fn write(&mut self, id: u32, path: String, offset: u64, data: Vec<u8>) -> Said<Status> {
        let mut things = locked(&self.state.things);
        let Some(Thing::File(bytes)) = things.get_mut(&path) else {
            return Err(StatusCode::NoSuchFile);
        };
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = at.saturating_add(data.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Some(place) = bytes.get_mut(at..end) {
            place.copy_from_slice(&data);
        }
        Ok(done(id))
    }

    async fn lstat(&mut self, id: u32, path: String) -> Said<Attrs> {
        let attrs = self.attributes(&path)?;
        Ok(Attrs { id, attrs })
    }

    async fn stat(&mut self, id: u32, path: String) -> Said<Attrs> {
        let attrs = self.attributes(&path)?;
        Ok(Attrs { id, attrs })
    }

    async fn fstat(&mut self, id: u32, path: String) -> Said<Attrs> {
        let attrs = self.attributes(&path)?;
        Ok(Attrs { id, attrs })
    }

    async fn opendir(&mut self, id: u32, path: String) -> Said<Handle> {
        self.attributes(&path)?;
        self.read = None;
        Ok(Handle { id, handle: path })
    }

    async fn readdir(&mut self, id: u32, path: String) -> Said<Name> {
        if self.read.as_ref() == Some(&path) {
            return Err(StatusCode::Eof);
        }
        let within = format!("{path}/");
        let paths: Vec<String> = locked(&self.state.things).keys().cloned().collect();
        let names = paths.iter().filter_map(|it| it.strip_prefix(&within));
        let names = names.filter(|it| !it.contains('/'));
        let mut files = Vec::new();
        for name in names {
            let attributes = self.attributes(&format!("{within}{name}"))?;
            files.push(File::new(name, attributes));
        }
        self.read = Some(path);
        Ok(Name { id, files })
    }

    async fn remove(&mut self, id: u32, path: String) -> Said<Status> {
        let gone = locked(&self.state.things).remove(&path);
        gone.map(|_| done(id)).ok_or(StatusCode::NoSuchFile)
    }

    async fn rmdir(&mut self, id: u32, path: String) -> Said<Status> {
        let within = format!("{path}/");
        let mut things = locked(&self.state.things);
        if things.keys().any(|it| it.starts_with(&within)) {
            return Err(StatusCode::Failure);
        }
        let gone = things.remove(&path);
        gone.map(|_| done(id)).ok_or(StatusCode::NoSuchFile)
    }

    async fn mkdir(&mut self, id: u32, path: String, _: FileAttributes) -> Said<Status> {
        let mut things = locked(&self.state.things);
        if things.contains_key(&path) {
            return Err(StatusCode::Failure);
        }
        things.insert(path, Thing::Folder);
        Ok(done(id))
    }

    async fn rename(&mut self, id: u32, from: String, to: String) -> Said<Status> {
        let mut things = locked(&self.state.things);
        if things.contains_key(&to) {
            return Err(StatusCode::Failure);
        }
        let within = format!("{from}/");
        let moved: Vec<String> = things
            .keys()
            .filter(|it| **it == from || it.starts_with(&within))
            .cloned()
            .collect();
        if moved.is_empty() {
            return Err(StatusCode::NoSuchFile);
        }
        for path in moved {
            if let Some(thing) = things.remove(&path) {
                let rest = path.strip_prefix(&from).unwrap_or_default();
                things.insert(format!("{to}{rest}"), thing);
            }
        }
        Ok(done(id))
    }

    async fn realpath(&mut self, id: u32, path: String) -> Said<Name> {
        let files = vec![File::dummy(path)];
        Ok(Name { id, files })
    }
}
