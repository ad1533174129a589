//! A machine is the Node that its cloud calls it, and certificates are for that name.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use evenkeel_testbed::network::GATEWAY;
use evenkeel_testbed::{Doing, Result};
use kube::ResourceExt;

use super::bed::{Bed, FIRST, is_skipped, template};

/// A cloud that tells its machines what they are called, in Amazon's way.
struct Cloud {
    url: String,
    asked: Arc<AtomicU32>,
}

impl Cloud {
    fn start(name: &str) -> Result<Self> {
        let listener = TcpListener::bind("0.0.0.0:0").doing(|| "cannot listen")?;
        let port = listener.local_addr().doing(|| "no address")?.port();
        let asked = Arc::new(AtomicU32::new(0));
        let (name, count) = (name.to_owned(), Arc::clone(&asked));
        // It ends with the tests' process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Who is gone before the answer asks again.
                _ = answer(stream, &name, &count);
            }
        });
        Ok(Self {
            url: format!("http://{GATEWAY}:{port}"),
            asked,
        })
    }
}

fn answer(mut stream: TcpStream, name: &str, asked: &AtomicU32) -> std::io::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    let lines: Vec<String> = lines
        .map_while(|line| line.ok().filter(|it| !it.is_empty()))
        .collect();
    let first = lines.first().map(String::as_str).unwrap_or_default();
    let has_token = lines
        .iter()
        .any(|it| it == "X-aws-ec2-metadata-token: leave");
    let (status, body) = match first {
        "PUT /latest/api/token HTTP/1.0" => ("200 OK", "leave".to_owned()),
        "GET /latest/meta-data/local-hostname HTTP/1.0" if has_token => {
            // A machine that has just begun is not known yet.
            if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                ("404 Not Found", String::new())
            } else {
                ("200 OK", format!("{name} {name}.example.com\n"))
            }
        }
        _ => ("401 Unauthorized", String::new()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Puts a script that we ship into a payload, which asks this cloud.
fn ship(bed: &Bed, script: &str, cloud: &Cloud) -> Result<()> {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/payload/files/scripts");
    let text = std::fs::read_to_string(shipped.join(script)).doing(|| "no such script")?;
    let command = "node-name --platform aws";
    let text = text.replace(command, &format!("{command} --metadata {}", cloud.url));
    let folder = bed.payload.join("files/scripts");
    std::fs::create_dir_all(&folder).doing(|| "cannot make a folder")?;
    std::fs::write(folder.join(script), text).doing(|| "cannot write a script")
}

/// Covers W02.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_called_as_its_cloud_calls_it_and_needs_nobody_to_give_it_an_address()
-> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::new("win-cloud").await?;
    let name = format!("ip-10-0-0-7.{}.internal", bed.scene.own("ec2"));
    let cloud = Cloud::start(&name)?;
    let script = "node-name-aws.ps1";
    for shipped in [script, "node-name.ps1", "node-ip.ps1"] {
        ship(&bed, shipped, &cloud)?;
    }
    let mut services = template(&bed.scene.name, "kubelet-double");
    let kubelet = &mut services["services"][1];
    let command = kubelet["command"].as_str().unwrap_or_default();
    kubelet["command"] =
        format!("{command} --cloud-provider=external --hostname-override=NODE_NAME").into();
    kubelet["powershellVariablesinCommand"] =
        serde_json::json!({ "name": "NODE_NAME", "path": format!(r"C:\k\scripts\{script}") });
    std::fs::write(bed.payload.join("services.yaml"), services.to_string())
        .doing(|| "cannot write the template")?;
    bed.seal()?;
    let instance = bed.instance("op-cloud")?;
    let _operator = bed.operator(&[])?;
    bed.list_these(&[&instance]).await?;

    let node = bed.serves_as(&instance, &name, FIRST).await?;
    let status = node.status.unwrap_or_default();
    assert_eq!(status.addresses.unwrap_or_default().len(), 0);
    let address = instance.address().to_string();
    let record = bed.settled(&address).await?;
    assert_eq!(record["node"], name);
    assert!(cloud.asked.load(Ordering::Relaxed) > 1);

    // It got its certificates for that name, and nobody became the Node that Windows' own name for the machine would be.
    let own = instance.computer_name().to_lowercase();
    let nodes = bed.scene.nodes();
    let other = nodes.get_opt(&own).await.doing(|| "no answer")?;
    assert_eq!(other.map(|it| it.name_any()), None);
    // The other scripts say what a machine on no cloud is told.
    let shell = r"C:\windows\system32\WindowsPowerShell\v1.0\powershell.exe";
    for (script, says) in [("node-name.ps1", &own), ("node-ip.ps1", &address)] {
        let path = format!(r"C:\k\scripts\{script}");
        assert_eq!(&instance.ask(&[shell, "-File", &path])?, says);
    }
    let words = ["windows-probe", "service", "state", "kubelet"];
    assert_eq!(instance.ask(&words)?, "Running");
    Ok(())
}
