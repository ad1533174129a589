//! A service manager that remembers what it was told, and refuses what it is told to refuse.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fault::Faults;
use crate::{Error, Result};

/// Something the service manager was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceCall {
    /// To read its units again.
    ReloadUnits,
    /// To make a unit read its configuration again.
    Reload(String),
    /// To stop and start a unit.
    Restart(String),
}

/// The services of a machine that only say what they heard. They can be combined with any disk.
#[derive(Debug, Default)]
pub struct SimulatedServices {
    faults: Arc<Faults>,
    inner: Mutex<ServicesState>,
}

#[derive(Debug, Default, Clone)]
struct ServicesState {
    told: Vec<ServiceCall>,
    refused: BTreeSet<String>,
    reload_units_refused: bool,
}

impl SimulatedServices {
    pub(super) fn with(faults: Arc<Faults>) -> Self {
        Self {
            faults,
            inner: Mutex::default(),
        }
    }

    /// The same services with what they were told to refuse, in a program of its own.
    pub(super) fn again(&self, faults: Arc<Faults>) -> Self {
        Self {
            faults,
            inner: Mutex::new(self.inner().clone()),
        }
    }

    fn inner(&self) -> MutexGuard<'_, ServicesState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `unit` can be neither reloaded nor restarted.
    pub fn refuse(&self, unit: &str) {
        self.inner().refused.insert(unit.to_owned());
    }

    /// From now on units cannot be read again.
    pub fn refuse_reload_units(&self) {
        self.inner().reload_units_refused = true;
    }

    /// Everything is accepted again.
    pub fn accept_all(&self) {
        let mut inner = self.inner();
        inner.refused.clear();
        inner.reload_units_refused = false;
    }

    /// All that they were told, refused or not, in order.
    pub fn told(&self) -> Vec<ServiceCall> {
        self.inner().told.clone()
    }

    /// Hears something.
    pub fn tell(&self, what: ServiceCall) -> Result<()> {
        let doing = match &what {
            ServiceCall::ReloadUnits => "reload the systemd units".to_owned(),
            ServiceCall::Reload(unit) => format!("reload {unit}"),
            ServiceCall::Restart(unit) => format!("restart {unit}"),
        };
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Services {
            doing: doing.clone(),
            source,
        };
        self.faults
            .changes_something()
            .map_err(|error| failed(error.into()))?;
        let mut inner = self.inner();
        let refused = match &what {
            ServiceCall::ReloadUnits => inner.reload_units_refused,
            ServiceCall::Reload(unit) | ServiceCall::Restart(unit) => inner.refused.contains(unit),
        };
        inner.told.push(what);
        if refused {
            Err(failed("it was told to refuse".into()))
        } else {
            Ok(())
        }
    }
}
