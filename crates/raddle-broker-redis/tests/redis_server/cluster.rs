//! Three masters that share the slots, without replicas.

use std::process::Command;

use super::{Server, until};

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
        let places = cluster
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port));
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(places).args([
            "--cluster-replicas",
            "0",
            "--cluster-yes",
        ]);
        let created = create
            .output()
            .expect("redis-cli is there: it comes with redis-server");
        assert!(
            created.status.success(),
            "{}",
            String::from_utf8_lossy(&created.stdout)
        );
        cluster.settle();
        cluster
    }

    /// Waits until all agree on who has what.
    pub(crate) fn settle(&self) {
        until("the cluster is whole", || {
            self.nodes.iter().all(|node| {
                let info = node.ask(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            })
        });
    }

    /// The node that has a namespace, and the others.
    pub(crate) fn owner(&self, namespace: &str) -> (usize, Vec<usize>) {
        let key = format!("raddle:{{{namespace}}}:spec");
        let (owners, others): (Vec<usize>, Vec<usize>) = (0..self.nodes.len())
            .partition(|node| !self.nodes[*node].ask(&["TYPE", &key]).starts_with("-MOVED"));
        (owners[0], others)
    }

    /// Moves the slot of a namespace from one node to another, in the steps that an operator's tool takes, with `half_way` in the middle.
    pub(crate) fn migrate(&self, namespace: &str, from: usize, to: usize, half_way: impl FnOnce()) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let id = |node: &Server| {
            node.ask(&["CLUSTER", "MYID"])
                .lines()
                .last()
                .unwrap_or_default()
                .to_owned()
        };
        let (source_id, target_id) = (id(source), id(target));
        let slot = source
            .ask(&["CLUSTER", "KEYSLOT", &format!("{{{namespace}}}")])
            .trim_start_matches(':')
            .to_owned();
        target.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]);
        source.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]);
        let (port, mut half_way) = (target.port.to_string(), Some(half_way));
        until("all keys are moved", || {
            let answer = source.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "5"]);
            let keys: Vec<&str> = answer
                .lines()
                .map(str::trim)
                .filter(|line| line.starts_with("raddle:"))
                .collect();
            if keys.is_empty() {
                return true;
            }
            source.ask(
                &[
                    &["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"],
                    &keys[..],
                ]
                .concat(),
            );
            if let Some(half_way) = half_way.take() {
                half_way();
            }
            false
        });
        for node in [target, source] {
            node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
        }
    }
}
