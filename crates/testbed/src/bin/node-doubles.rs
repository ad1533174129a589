//! Many node doubles in one process, whose memory can be measured from outside:
//! `node-doubles KUBECONFIG COUNT PREFIX [CERTIFICATES BOOTSTRAP_KUBECONFIG]`.
//!
//! It says `ready` when all are registered, and keeps them alive until it is killed.

use std::path::Path;

use evenkeel_testbed::kubeconfig::Kubeconfig;
use evenkeel_testbed::node_double::{NodeDouble, NodeFleet};
use evenkeel_testbed::{Doing, Error, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (login, count, prefix, bootstrap) = match arguments.as_slice() {
        [login, count, prefix] => (login, count, prefix, None),
        [login, count, prefix, certificates, bootstrap] => {
            (login, count, prefix, Some((certificates, bootstrap)))
        }
        _ => {
            return Err(Error::failed(
                "usage: node-doubles KUBECONFIG COUNT PREFIX [CERTIFICATES BOOTSTRAP_KUBECONFIG]",
            ));
        }
    };
    let login = Kubeconfig::read(Path::new(login))?;
    let mut nodes: Vec<_> = (0..number(count)?)
        .map(|number| NodeDouble::named(&format!("{prefix}{number}")))
        .collect();
    if let Some((certificates, bootstrap)) = bootstrap {
        let bootstrap = Kubeconfig::read(Path::new(bootstrap))?;
        for node in nodes.iter_mut().take(number(certificates)?) {
            *node = node
                .clone()
                .with_certificate_from(&bootstrap)
                .approved_by(&login);
        }
    }
    let fleet = NodeFleet::start(nodes, &login).await?;
    println!("ready");
    std::future::pending::<()>().await;
    drop(fleet);
    Ok(())
}

fn number(text: &str) -> Result<usize> {
    text.parse().doing(|| format!("`{text}` is not a number"))
}
