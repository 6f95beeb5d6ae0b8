//! A cluster of three masters without replicas.

use std::process::Command;

use super::{Server, wait_until};

/// A cluster.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

const NODES: usize = 3;

impl Cluster {
    pub(crate) fn start() -> Self {
        let config = [
            "--cluster-enabled",
            "yes",
            "--appendonly",
            "yes",
            "--cluster-node-timeout",
            "15000",
        ];
        let nodes: Vec<Server> = (0..NODES).map(|_| Server::for_cluster(&config)).collect();
        let cluster = Self { nodes };
        let addresses = cluster
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port));
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(addresses).args([
            "--cluster-replicas",
            "0",
            "--cluster-yes",
        ]);
        let created = create
            .output()
            .expect("redis-cli is installed with redis-server");
        assert!(
            created.status.success(),
            "{}",
            String::from_utf8_lossy(&created.stdout)
        );
        cluster.wait_until_agreed();
        cluster
    }

    /// Waits until all nodes agree on the slots.
    pub(crate) fn wait_until_agreed(&self) {
        wait_until("the cluster is whole", || {
            self.nodes.iter().all(|node| {
                let info = node.command(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            })
        });
    }

    /// The node of a namespace, and the other nodes.
    pub(crate) fn owner(&self, namespace: &str) -> (usize, Vec<usize>) {
        let key = format!("raddle:{{{namespace}}}:spec");
        let (owners, others): (Vec<usize>, Vec<usize>) = (0..self.nodes.len()).partition(|node| {
            !self.nodes[*node]
                .command(&["TYPE", &key])
                .starts_with("-MOVED")
        });
        (owners[0], others)
    }

    /// Moves the slot of a namespace to another node in the steps of an operator's tool, with
    /// `during` in the middle.
    pub(crate) fn migrate(&self, namespace: &str, from: usize, to: usize, during: impl FnOnce()) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let id = |node: &Server| {
            node.command(&["CLUSTER", "MYID"])
                .lines()
                .last()
                .unwrap_or_default()
                .to_owned()
        };
        let (source_id, target_id) = (id(source), id(target));
        let slot = source
            .command(&["CLUSTER", "KEYSLOT", &format!("{{{namespace}}}")])
            .trim_start_matches(':')
            .to_owned();
        target.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]);
        source.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]);
        let (port, mut during) = (target.port.to_string(), Some(during));
        wait_until("all keys are moved", || {
            let answer = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "5"]);
            let keys: Vec<&str> = answer
                .lines()
                .map(str::trim)
                .filter(|line| line.starts_with("raddle:"))
                .collect();
            if keys.is_empty() {
                return true;
            }
            source.command(
                &[
                    &["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"],
                    &keys[..],
                ]
                .concat(),
            );
            if let Some(during) = during.take() {
                during();
            }
            false
        });
        for node in [target, source] {
            node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
        }
    }
}
