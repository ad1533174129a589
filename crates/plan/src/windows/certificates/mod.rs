//! Which requests for a certificate are approved: those of kubelets and agents of Windows nodes that are
//! ours, when every word in them is as it must be.
//!
//! A first certificate is given only while the operator itself configures the machine; later ones only
//! to whoever holds the one before. A request that speaks for a machine of ours and has a word too many
//! is denied with the reason; all others are somebody else's, and are left alone.

#[cfg(test)]
mod tests;
pub mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use evenkeel_api::names::identity::{AGENT_GROUP, AGENT_USER_PREFIX};
use evenkeel_api::names::{certificate, program};

use crate::excerpt::excerpt;

/// A request, as the API server vouches for it and as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningRequest {
    /// Who is to sign it.
    pub signer: String,
    /// Who asks.
    pub user: String,
    /// The groups of who asks.
    pub groups: BTreeSet<String>,
    /// Which of all logins of that user it is, where the API server says so.
    pub credential: Option<String>,
    /// What the certificate is to be good for.
    pub usages: BTreeSet<String>,
    /// What the certificate is to say, or why that cannot be read.
    pub subject: Result<Subject, String>,
}

/// What a certificate is to say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// Its common names: there should be one.
    pub common_names: Vec<String>,
    /// Its organisations.
    pub organisations: Vec<String>,
    /// DNS names that it is to be good for.
    pub dns: Vec<String>,
    /// Addresses that it is to be good for.
    pub addresses: Vec<IpAddr>,
    /// Whatever else it asks for, for people to read: other names, and extensions.
    pub others: Vec<String>,
}

/// Who a login is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// Its user.
    pub user: String,
    /// Its groups.
    pub groups: BTreeSet<String>,
}

/// A Node, as far as certificates go: nothing of this is its kubelet's word alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownNode {
    /// Whether it is a Windows node that is ours, by our record of its machine.
    pub is_managed: bool,
    /// Where its machine is, as it is listed, as its Machine says, or where we reached it.
    pub addresses: Vec<IpAddr>,
    /// Names that its Machine has besides that of the Node.
    pub names: Vec<String>,
}

/// What is known when a request is looked at.
pub trait CertificateContext {
    /// The operator's namespace.
    fn namespace(&self) -> &str;
    /// Who the kubelets of new machines are.
    fn bootstrapper(&self) -> Option<Identity>;
    /// Whether the machine that is to be this node is being configured.
    fn is_configured_now(&self, node: &str) -> bool;
    /// The login that the agent was given which configures the machine that is to be this node, or
    /// which takes that back.
    fn credential(&self, node: &str) -> Option<String>;
    /// The Node, if there is one.
    fn node(&self, name: &str) -> Option<KnownNode>;
    /// Who else has this address or name, for people to read: a Service, the API server, or the machine of another Node than
    /// `node`. What kubelets say of themselves does not count.
    fn owner(&self, address: &str, node: &str) -> Option<String>;
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    /// It is approved, and why.
    Approve(String),
    /// It is denied, and why.
    Deny(String),
    /// It is not ours to decide, or not yet.
    Leave,
}

const AUTHENTICATED: &str = "system:authenticated";
const NODES: &str = "system:nodes";
const NODE_USER_PREFIX: &str = "system:node:";

/// Decides on one request.
pub fn decide(request: &SigningRequest, world: &dyn CertificateContext) -> Approval {
    match request.signer.as_str() {
        certificate::KUBELET_CLIENT => kubelet_client(request, world),
        certificate::KUBELET_SERVING => kubelet_serving(request, world),
        certificate::CLIENT => agent_client(request, world),
        _ => Approval::Leave,
    }
}

/// A kubelet's login: its first while its machine is being configured, or the next one for itself.
fn kubelet_client(request: &SigningRequest, world: &dyn CertificateContext) -> Approval {
    if let Some(node) = request.user.strip_prefix(NODE_USER_PREFIX) {
        if !is_managed_node(world, node) {
            return Approval::Leave;
        }
        let wanted = RequiredSubject::client(&request.user, NODES, &[NODES]);
        return judge(
            request,
            &wanted,
            &format!("the kubelet of Node {node} renews its client certificate"),
        );
    }
    let Ok(subject) = &request.subject else {
        return Approval::Leave;
    };
    let mut names = subject.common_names.iter();
    let named = names.find_map(|name| {
        let node = name.strip_prefix(NODE_USER_PREFIX)?;
        world.is_configured_now(node).then_some(node)
    });
    let (Some(node), Some(bootstrapper)) = (named, world.bootstrapper()) else {
        return Approval::Leave;
    };
    if request.user != bootstrapper.user {
        return Approval::Leave;
    }
    if world.node(node).is_some() {
        return Approval::Deny(format!(
            "Node {node} exists already, and has a kubelet: delete the Node if its machine was recreated"
        ));
    }
    let mut wanted = RequiredSubject::client(&format!("{NODE_USER_PREFIX}{node}"), NODES, &[]);
    wanted.groups = bootstrapper.groups;
    let why = format!("the operator is configuring the machine of Node {node}");
    judge(request, &wanted, &why)
}

/// A kubelet's own certificate as a server, for addresses of its node.
fn kubelet_serving(request: &SigningRequest, world: &dyn CertificateContext) -> Approval {
    let Some(node) = request.user.strip_prefix(NODE_USER_PREFIX) else {
        return Approval::Leave;
    };
    let Some(known) = world.node(node).filter(|it| it.is_managed) else {
        return Approval::Leave;
    };
    let mut wanted = RequiredSubject::client(&request.user, NODES, &[NODES]);
    wanted.usage = "server auth";
    wanted.may_have_names = true;
    let verdict = judge(
        request,
        &wanted,
        &format!("the kubelet of Node {node} needs a serving certificate"),
    );
    let (Approval::Approve(_), Ok(subject)) = (&verdict, &request.subject) else {
        return verdict;
    };
    if subject.addresses.is_empty() && subject.dns.is_empty() {
        return Approval::Deny("it has neither an address nor a name".to_owned());
    }
    let foreign = subject
        .addresses
        .iter()
        .find(|it| !known.addresses.contains(it));
    if let Some(address) = foreign {
        return Approval::Deny(format!(
            "{address} is not an address at which the machine of Node {node} is listed or was reached: if it has it, list the machine with nodeAddress={address}"
        ));
    }
    let is_own = |name: &String| {
        let mut own = known.names.iter().map(String::as_str).chain([node]);
        own.any(|it| it.eq_ignore_ascii_case(name))
    };
    if let Some(name) = subject.dns.iter().find(|it| !is_own(it)) {
        let name = excerpt(name);
        return Approval::Deny(format!("{name:?} is not a name of Node {node}"));
    }
    let addresses = subject.addresses.iter().map(ToString::to_string);
    let mut all = addresses.chain(subject.dns.iter().map(|it| it.to_ascii_lowercase()));
    if let Some((name, owner)) = all.find_map(|it| world.owner(&it, node).map(|owner| (it, owner)))
    {
        return Approval::Deny(format!("{name} belongs to {owner}"));
    }
    verdict
}

/// The addresses and names of Services, and of the API server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reserved {
    /// Services by name: their namespaces.
    services: BTreeMap<String, BTreeSet<String>>,
    /// Whose an address is.
    addresses: BTreeMap<IpAddr, String>,
    /// Hosts of the API server.
    hosts: BTreeSet<String>,
}

impl Reserved {
    /// Takes note of a Service.
    pub fn service<'a>(
        &mut self,
        namespace: &str,
        name: &str,
        addresses: impl Iterator<Item = &'a str>,
    ) {
        let namespaces = self.services.entry(name.to_owned()).or_default();
        namespaces.insert(namespace.to_owned());
        for address in addresses.filter_map(|it| it.parse().ok()) {
            let owner = format!("Service {namespace}/{name}");
            self.addresses.insert(address, owner);
        }
    }

    /// Takes note of a URL at which the API server is reached.
    pub fn api_server(&mut self, url: &str) {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let place = rest.split('/').next().unwrap_or_default();
        let host = match place.strip_prefix('[') {
            Some(number) => number.split(']').next(),
            None => place.split(':').next(),
        };
        self.hosts
            .extend(host.map(|it| it.trim_end_matches('.').to_ascii_lowercase()));
    }

    /// Whose an address or a name is, in any of the ways in which a Service is called.
    pub fn owner(&self, name: &str) -> Option<String> {
        if self.hosts.iter().any(|it| is_same(it, name)) {
            return Some("the API server".to_owned());
        }
        if let Ok(address) = name.parse::<IpAddr>() {
            return self.addresses.get(&address).cloned();
        }
        let mut labels = name.split('.');
        let service = labels.next().unwrap_or_default();
        let namespaces = self.services.get(service)?;
        let namespace = match labels.next() {
            // Within its own namespace the name alone is enough.
            None => namespaces.first(),
            Some(namespace) => {
                let is_whole = labels.next().is_none_or(|it| it == "svc");
                namespaces.get(namespace).filter(|_| is_whole)
            }
        };
        Some(format!("Service {}/{service}", namespace?))
    }
}

/// An agent's login: its first while its machine is being configured, or the next one for itself.
fn agent_client(request: &SigningRequest, world: &dyn CertificateContext) -> Approval {
    if let Some(node) = request.user.strip_prefix(AGENT_USER_PREFIX) {
        if !is_managed_node(world, node) {
            return Approval::Leave;
        }
        let wanted = RequiredSubject::client(&request.user, AGENT_GROUP, &[AGENT_GROUP]);
        return judge(
            request,
            &wanted,
            &format!("the agent of Node {node} renews its client certificate"),
        );
    }
    let namespace = world.namespace();
    if request.user != format!("system:serviceaccount:{namespace}:{}", program::AGENT) {
        return Approval::Leave;
    }
    // This account may ask for nothing else.
    let subject = match &request.subject {
        Ok(subject) => subject,
        Err(why) => return Approval::Deny(why.clone()),
    };
    let mut names = subject.common_names.iter();
    let named = names.find_map(|name| name.strip_prefix(AGENT_USER_PREFIX));
    let Some(node) = named else {
        return Approval::Deny(format!(
            "its common name is {:?}, not {AGENT_USER_PREFIX}<node>",
            subject.common_names.join(", ")
        ));
    };
    // It may have been made by somebody else since its machine was asked for its name.
    if world.node(node).is_some_and(|it| !it.is_managed) {
        return Approval::Deny(format!(
            "Node {node} does not belong to the machine that the operator is configuring"
        ));
    }
    let given = world.credential(node);
    if given.is_none() || given != request.credential {
        return Approval::Deny(format!(
            "the operator is not configuring the machine of Node {node} with this login"
        ));
    }
    let own = format!("system:serviceaccounts:{namespace}");
    let groups = ["system:serviceaccounts", &own];
    let wanted =
        RequiredSubject::client(&format!("{AGENT_USER_PREFIX}{node}"), AGENT_GROUP, &groups);
    judge(
        request,
        &wanted,
        &format!("the operator is configuring the machine of Node {node}"),
    )
}

fn is_managed_node(world: &dyn CertificateContext, node: &str) -> bool {
    world.node(node).is_some_and(|it| it.is_managed)
}

/// Whether two texts are the same address or name.
fn is_same(one: &str, other: &str) -> bool {
    match (one.parse::<IpAddr>(), other.parse::<IpAddr>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one.eq_ignore_ascii_case(other),
    }
}

/// What a request must say, word by word.
struct RequiredSubject<'a> {
    groups: BTreeSet<String>,
    common_name: String,
    organisation: &'a str,
    usage: &'a str,
    may_have_names: bool,
}

impl<'a> RequiredSubject<'a> {
    fn client(common_name: &str, organisation: &'a str, groups: &[&str]) -> Self {
        let groups = groups.iter().chain(&[AUTHENTICATED]);
        Self {
            groups: groups.map(|&it| it.to_owned()).collect(),
            common_name: common_name.to_owned(),
            organisation,
            usage: "client auth",
            may_have_names: false,
        }
    }
}

fn judge(request: &SigningRequest, wanted: &RequiredSubject<'_>, why: &str) -> Approval {
    match mistake(request, wanted) {
        None => Approval::Approve(why.to_owned()),
        Some(mistake) => Approval::Deny(mistake),
    }
}

/// The first word that is not as it must be.
fn mistake(request: &SigningRequest, wanted: &RequiredSubject<'_>) -> Option<String> {
    let subject = match &request.subject {
        Ok(subject) => subject,
        Err(why) => return Some(why.clone()),
    };
    let join = |words: &BTreeSet<String>| words.iter().cloned().collect::<Vec<_>>().join(", ");
    if request.groups != wanted.groups {
        let (are, should) = (join(&request.groups), join(&wanted.groups));
        return Some(format!(
            "{} is in the groups {are}, not in {should}",
            request.user
        ));
    }
    if subject.common_names != [wanted.common_name.as_str()] {
        return Some(format!(
            "its common name is {:?}, not {:?}",
            subject.common_names.join(", "),
            wanted.common_name
        ));
    }
    if subject.organisations != [wanted.organisation] {
        return Some(format!(
            "its organisation is {:?}, not {:?}",
            subject.organisations.join(", "),
            wanted.organisation
        ));
    }
    if let Some(other) = subject.others.first() {
        return Some(format!("it asks for {other}"));
    }
    if !wanted.may_have_names && (!subject.dns.is_empty() || !subject.addresses.is_empty()) {
        return Some("a client certificate has no address and no name".to_owned());
    }
    let always = BTreeSet::from(["digital signature", wanted.usage].map(str::to_owned));
    let mut with_rsa = always.clone();
    with_rsa.insert("key encipherment".to_owned());
    if request.usages != always && request.usages != with_rsa {
        let (are, should) = (join(&request.usages), join(&always));
        return Some(format!("its usages are {are:?}, not {should:?}"));
    }
    None
}
