//! systemd over D-Bus: reading units again, and jobs on units that are followed to their end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use zbus::connection::Builder;
use zbus::wire::OwnedObjectPath;
use zbus::{Connection, Proxy};

use crate::{Error, Result};

const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
const NO_SUCH_FILE: &str = "org.freedesktop.DBus.Error.FileNotFound";
/// systemd itself gives a job 90 seconds; after this long it will not answer any more.
const DEADLINE: Duration = Duration::from_mins(2);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The systemd of a machine, with where its bus is.
#[derive(Debug)]
pub(crate) struct Systemd {
    bus: String,
    root: PathBuf,
}

impl Systemd {
    /// The one that runs the machine whose root is at `root`, if it was booted with systemd.
    pub(crate) fn below(root: &Path) -> Option<Self> {
        let bus = root.join("run/dbus/system_bus_socket");
        let is_running = root.join("run/systemd/system").is_dir();
        is_running.then(|| Self {
            bus: format!("unix:path={}", bus.display()),
            root: root.to_owned(),
        })
    }

    /// Where the machine's root is.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Makes systemd read its units again.
    pub(crate) fn reload_units(&self) -> Result<()> {
        wait_for("reload the systemd units", async {
            let bus = self.connect().await?;
            manager(&bus).await?.call::<_, _, ()>("Reload", &()).await?;
            Ok(())
        })
    }

    /// Makes an active unit read its configuration again.
    pub(crate) fn reload(&self, unit: &str) -> Result<()> {
        wait_for(&format!("reload {unit}"), self.job("ReloadUnit", unit))
    }

    /// Stops and starts an active unit.
    pub(crate) fn restart(&self, unit: &str) -> Result<()> {
        wait_for(&format!("restart {unit}"), self.job("RestartUnit", unit))
    }

    /// Whether a unit is loaded and active.
    pub(crate) fn is_active(&self, unit: &str) -> Result<bool> {
        wait_for(&format!("read the state of {unit} from systemd"), async {
            let bus = self.connect().await?;
            Ok(is_active(&bus, &manager(&bus).await?, unit).await?)
        })
    }

    /// What systemd makes of a unit's files: `enabled`, `disabled`, `masked`, …; nothing if it knows
    /// none.
    pub(crate) fn unit_states(&self, units: &[&str]) -> Result<Vec<Option<String>>> {
        wait_for("read the states of units from systemd", async {
            let bus = self.connect().await?;
            let manager = manager(&bus).await?;
            let mut states = Vec::with_capacity(units.len());
            for unit in units {
                let state = manager.call("GetUnitFileState", &(unit,)).await;
                states.push(match state {
                    Ok(state) => Some(state),
                    Err(zbus::Error::MethodError(name, _, _))
                        if name.as_str() == NO_SUCH_FILE || name.as_str() == NO_SUCH_UNIT =>
                    {
                        None
                    }
                    Err(error) => return Err(error.into()),
                });
            }
            Ok(states)
        })
    }

    /// Boots the machine anew, in good order, through logind.
    pub(crate) fn reboot(&self) -> Result<()> {
        wait_for("reboot", async {
            let bus = self.connect().await?;
            let logind = Proxy::new(
                &bus,
                "org.freedesktop.login1",
                "/org/freedesktop/login1",
                "org.freedesktop.login1.Manager",
            );
            logind.await?.call::<_, _, ()>("Reboot", &(false,)).await?;
            Ok(())
        })
    }

    pub(crate) async fn connect(&self) -> zbus::Result<Connection> {
        Builder::address(self.bus.as_str()).build().await
    }

    /// Runs a job on `unit` and waits for its result.
    async fn job(&self, method: &str, unit: &str) -> Result<(), Failure> {
        let bus = self.connect().await?;
        let manager = manager(&bus).await?;
        if !is_active(&bus, &manager, unit).await? {
            return Ok(());
        }
        manager.call::<_, _, ()>("Subscribe", &()).await?;
        let mut removed = manager.receive_signal("JobRemoved").await?;
        let started: OwnedObjectPath = manager.call(method, &(unit, "replace")).await?;
        while let Some(signal) = removed.next().await {
            let (_, job, _, result) = signal
                .body()
                .deserialize::<(u32, OwnedObjectPath, String, String)>()?;
            if job == started {
                return match result.as_str() {
                    "done" | "skipped" => Ok(()),
                    other => Err(format!(
                        "the systemd job ended with result {other}: see `systemctl status {unit}`"
                    )
                    .into()),
                };
            }
        }
        Err("the connection to systemd ended before the job was done".into())
    }
}

/// Talks to systemd from a thread that may wait. The connection lives as long as the talk.
fn wait_for<T>(doing: &str, talk: impl Future<Output = Result<T, Failure>>) -> Result<T> {
    let failed = |source: Failure| Error::Services {
        doing: doing.to_owned(),
        source,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(error.into()))?;
    let late = || {
        format!(
            "systemd did not finish within {} seconds",
            DEADLINE.as_secs()
        )
    };
    runtime.block_on(async {
        tokio::time::timeout(DEADLINE, talk)
            .await
            .unwrap_or_else(|_| Err(late().into()))
            .map_err(failed)
    })
}

async fn manager(bus: &Connection) -> zbus::Result<Proxy<'static>> {
    Proxy::new(bus, SERVICE, MANAGER_PATH, MANAGER).await
}

/// Whether `unit` is loaded and active.
async fn is_active(bus: &Connection, manager: &Proxy<'_>, unit: &str) -> zbus::Result<bool> {
    let path: OwnedObjectPath = match manager.call("GetUnit", &(unit,)).await {
        Ok(path) => path,
        Err(zbus::Error::MethodError(name, _, _)) if name.as_str() == NO_SUCH_UNIT => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    let state: String = Proxy::new(bus, SERVICE, path, UNIT)
        .await?
        .get_property("ActiveState")
        .await?;
    Ok(matches!(state.as_str(), "active" | "reloading"))
}
