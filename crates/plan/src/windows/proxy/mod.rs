//! The egress proxy of Windows nodes: who says what it is, whether that will do, and what stays if it will
//! not. What is said of a value never repeats it, because there may be a password in it.

mod judge;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_api::names::proxy;
use evenkeel_api::windows::services::{self, Services};
use evenkeel_api::windows::version::Version;

/// What programs learn of a proxy: three variables of the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variable {
    /// The proxy for http.
    HttpProxy,
    /// The proxy for https.
    HttpsProxy,
    /// Who is reached without one.
    NoProxy,
}

impl Variable {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::HttpProxy, Self::HttpsProxy, Self::NoProxy];

    /// Its name in an environment.
    pub fn name(self) -> &'static str {
        match self {
            Self::HttpProxy => proxy::HTTP,
            Self::HttpsProxy => proxy::HTTPS,
            Self::NoProxy => proxy::NO,
        }
    }

    /// Its name as a field of an object, and among the chart's values.
    pub fn field(self) -> &'static str {
        match self {
            Self::HttpProxy => "httpProxy",
            Self::HttpsProxy => "httpsProxy",
            Self::NoProxy => "noProxy",
        }
    }
}

/// Values of those variables; one that is empty is none. Shown without what opens doors.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ProxySettings(BTreeMap<Variable, String>);

impl<V: Into<String>> FromIterator<(Variable, V)> for ProxySettings {
    fn from_iter<T: IntoIterator<Item = (Variable, V)>>(all: T) -> Self {
        let all = all.into_iter().map(|(name, value)| (name, value.into()));
        Self(all.filter(|(_, value)| !value.trim().is_empty()).collect())
    }
}

impl ProxySettings {
    /// Those that services declare.
    pub fn declared_in(services: &Services) -> Self {
        let all = services.environment.iter();
        all.filter_map(|it| {
            let mut names = Variable::ALL.into_iter();
            let name = names.find(|name| name.name().eq_ignore_ascii_case(&it.name))?;
            Some((name, it.value.clone()))
        })
        .collect()
    }

    /// What services declare, where this holds.
    pub fn variables(&self) -> Vec<services::Variable> {
        let all = self.0.iter().map(|(name, value)| services::Variable {
            name: name.name().to_owned(),
            value: value.clone(),
        });
        all.collect()
    }

    /// The value of one of them.
    pub fn get(&self, name: Variable) -> Option<&str> {
        self.0.get(&name).map(String::as_str)
    }

    /// Whether there is a proxy at all: exceptions alone are none.
    pub fn has_proxy(&self) -> bool {
        self.0.keys().any(|name| *name != Variable::NoProxy)
    }

    /// Each with its value, for people: user and password are hidden.
    pub fn shown(&self) -> Vec<(&'static str, String)> {
        let all = self.0.iter();
        all.map(|(name, value)| (name.name(), shown(value)))
            .collect()
    }
}

impl fmt::Display for ProxySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.shown().into_iter();
        let all: Vec<String> = all.map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&all.join(" "))
    }
}

impl fmt::Debug for ProxySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// A value as people may see it, in one line: whatever is before its last @ is hidden, but for a scheme.
pub fn shown(value: &str) -> String {
    let value = value.replace(char::is_control, " ");
    let Some((before, host)) = value.rsplit_once('@') else {
        return value;
    };
    let scheme = ["http://", "https://"]
        .into_iter()
        .find(|it| before.starts_with(it));
    format!("{}***@{host}", scheme.unwrap_or_default())
}

/// Who may say what the proxy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The operator's own environment, which OLM fills from the cluster's Proxy.
    Environment,
    /// What the cluster's Proxy has become: its status.
    Cluster,
    /// The chart's values.
    Chart,
}

impl Source {
    /// All of them: the first that names a proxy is believed, and nobody after it is asked.
    pub const ALL: [Self; 3] = [Self::Environment, Self::Cluster, Self::Chart];

    /// In one word, for metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Cluster => "cluster",
            Self::Chart => "chart",
        }
    }

    /// Where it says what a variable is.
    pub fn place(self, variable: Variable) -> String {
        let (name, field) = (variable.name(), variable.field());
        match self {
            Self::Environment => format!("{name} in the operator's environment"),
            Self::Cluster => format!("status.{field} of the cluster's Proxy {}", proxy::OBJECT),
            Self::Chart => format!("proxy.{field} in the chart's values"),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Environment => "the operator's environment",
            Self::Cluster => "the cluster's Proxy",
            Self::Chart => "the chart's values",
        })
    }
}

/// What each source says.
#[derive(Debug, Clone, Copy)]
pub struct ProxySources<'a> {
    /// The operator's own environment.
    pub environment: &'a ProxySettings,
    /// The status of the cluster's Proxy; nothing as long as nobody has looked.
    pub cluster: Option<&'a ProxySettings>,
    /// The chart's values.
    pub chart: &'a ProxySettings,
}

/// Something wrong with a variable, in words that do not repeat its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Which.
    pub variable: Variable,
    /// Where it is, what is wrong with it, what would be right, and what holds instead.
    pub note: String,
}

/// What nodes get.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyDecision {
    /// Who was believed; nobody, if nobody names a proxy.
    pub source: Option<Source>,
    /// What is declared.
    pub settings: ProxySettings,
    /// Values that will not do: what was good last stays in their place.
    pub problems: Vec<Remark>,
    /// Values that are passed on although hardly anybody will understand them.
    pub warnings: Vec<Remark>,
}

/// Decides what nodes get, where `last` is what they were given before. Nobody knows as long as a source that
/// has to be asked was not heard.
///
/// A value that will not do is never taken for none: nodes would pass the proxy by.
pub fn decide(said: ProxySources<'_>, last: &ProxySettings) -> Option<ProxyDecision> {
    let mut believed = None;
    for source in Source::ALL {
        let given = match source {
            Source::Environment => said.environment,
            Source::Cluster => said.cluster?,
            Source::Chart => said.chart,
        };
        if given.has_proxy() {
            believed = Some((source, given));
            break;
        }
    }
    let Some((source, given)) = believed else {
        return Some(ProxyDecision::default());
    };
    let mut decision = ProxyDecision {
        source: Some(source),
        ..ProxyDecision::default()
    };
    let mut settings = BTreeMap::new();
    for (name, value) in &given.0 {
        let place = source.place(*name);
        let judged = judge::judge(*name, value);
        let warnings = judged.as_ref().map(Vec::as_slice).unwrap_or_default();
        decision.warnings.extend(warnings.iter().map(|why| Remark {
            variable: *name,
            note: format!("{place}: {why}"),
        }));
        match judged {
            Ok(_) => _ = settings.insert(*name, value.clone()),
            Err(why) => {
                let instead = match last.0.get(name) {
                    Some(good) => {
                        settings.insert(*name, good.clone());
                        "Windows nodes keep the last good value"
                    }
                    None => "Windows nodes have no proxy until then",
                };
                decision.problems.push(Remark {
                    variable: *name,
                    note: format!("{place}: {why}; {instead}"),
                });
            }
        }
    }
    decision.settings = ProxySettings(settings);
    Some(decision)
}

/// What nodes were given before: by the services ConfigMap of the newest version that there is.
pub fn last_given<'a>(
    maps: impl IntoIterator<Item = (&'a str, &'a ProxySettings)>,
) -> ProxySettings {
    let newest = maps
        .into_iter()
        .filter_map(|(name, settings)| Some((Version::from_config_map_name(name).ok()?, settings)))
        .max_by(|(one, _), (other, _)| one.compare_release(other));
    newest.map(|(_, it)| it.clone()).unwrap_or_default()
}
