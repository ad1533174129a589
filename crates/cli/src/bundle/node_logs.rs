//! What agents wrote down on Windows nodes: nobody else has it. Their kubelets serve it, and the API server
//! fetches it from there.

use std::time::Duration;

use anyhow::Result;
use evenkeel_api::names::{annotation, label, windows};
use futures::StreamExt;
use kube::api::{DynamicObject, ListParams};
use kube::{Client, ResourceExt};

use super::{Bundle, redact};
use crate::cluster::{Cluster, nodes_kind};

/// How many nodes are asked at once, and how long one may take.
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(20);
/// What kubelets on Windows serve.
const SERVED: &str = r"C:\var\log\";
/// By these a node of ours is known.
const OURS: [&str; 3] = [
    annotation::INSTANCE,
    annotation::DESIRED_SERVICES,
    annotation::CURRENT_SERVICES,
];

/// The logs of a node, by their names.
type Logs = Vec<(String, String)>;

impl Bundle {
    pub(super) async fn node_logs(&mut self, cluster: &Cluster) -> Result<()> {
        let nodes = cluster.all(&nodes_kind());
        let windows = ListParams::default().labels(&format!("{}=windows", label::OS));
        // That they cannot be listed was told already.
        let found = cluster.pages(&nodes, &windows).await.unwrap_or_default();
        let is_managed_node =
            |node: &DynamicObject| OURS.iter().any(|it| node.annotations().contains_key(*it));
        let ours: Vec<String> = found
            .iter()
            .filter(|it| is_managed_node(it))
            .map(ResourceExt::name_any)
            .collect();
        let mut answers = futures::stream::iter(&ours)
            .map(async |name| {
                let logs = tokio::time::timeout(PATIENCE, logs(&cluster.client, name)).await;
                (name, logs)
            })
            .buffered(AT_ONCE);
        while let Some((name, answer)) = answers.next().await {
            let folder = format!("logs/{name}");
            match answer {
                Ok(Ok(logs)) => {
                    for (file, text) in logs {
                        let (text, removed) = redact::log(&text);
                        self.removed += removed;
                        self.add(&format!("{folder}/{file}"), &text)?;
                    }
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                    self.missing.push(format!(
                        "logs of Windows nodes: you are not allowed to read them through the kubelets: ask your \
                         administrator for the ClusterRole evenkeel-node-logs\n  because: {}",
                        status.message
                    ));
                    // The others would say the same.
                    break;
                }
                Ok(Err(error)) => {
                    let what = format!("read the logs of node {name}");
                    self.lacks(cluster, &folder, &what, error);
                }
                Err(_) => self.missing.push(format!(
                    "{folder}: node {name} did not answer within {}s",
                    PATIENCE.as_secs()
                )),
            }
        }
        Ok(())
    }
}

async fn logs(client: &Client, node: &str) -> kube::Result<Logs> {
    let own = windows::LOGS.trim_start_matches(SERVED).replace('\\', "/");
    let folder = format!("/api/v1/nodes/{node}/proxy/logs/{own}");
    let page = get(client, &folder).await?;
    let mut logs = Vec::new();
    for name in listed(&page) {
        logs.push((
            name.to_owned(),
            get(client, &format!("{folder}{name}")).await?,
        ));
    }
    Ok(logs)
}

async fn get(client: &Client, path: &str) -> kube::Result<String> {
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}

/// The files that a page of Go's file server lists. A name that is more than a name is none of ours.
fn listed(page: &str) -> Vec<&str> {
    let is_plain = |name: &&str| {
        let plain = |it: char| it.is_ascii_alphanumeric() || "._-".contains(it);
        !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
    };
    let links = page.split("<a href=\"").skip(1);
    let names = links.filter_map(|it| it.split('"').next());
    names.filter(is_plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_of_a_page_are_asked_for() {
        let page = "<pre>\n<a href=\"agent.log\">agent.log</a>\n<a href=\"agent.log.1\">agent.log.1</a>\n\
                    <a href=\"folder/\">folder/</a>\n<a href=\"../x\">x</a>\n<a href=\"%2e%2e\">y</a>\n</pre>";
        assert_eq!(listed(page), ["agent.log", "agent.log.1"]);
        assert!(listed("404 page not found").is_empty());
    }
}
