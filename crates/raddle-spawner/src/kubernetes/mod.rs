//! The launcher for workers in pods of a Kubernetes cluster.
//!
//! | file | what |
//! | --- | --- |
//! | `template.rs`, `overlay.rs` | the pods that are created; the user's file that is merged into them. Pure |
//! | `pod.rs` | what the API reports about a pod, and what that means. Pure |
//! | `access.rs` | address of the API server, and the credentials for it |
//! | `http.rs`, `api.rs`, `error.rs` | one request; the four calls; what their failures mean |
//! | `create.rs`, `watch.rs` | creating and deleting a pod; watching all pods of a class |
//! | `launcher.rs` | the launcher: what is known of each pod, and the events about it |
//!
//! Four verbs on pods are used: create, list, watch and delete. A worker does not report to the
//! launcher while it lives: the registry, which the spawner reads anyway, shows that it is
//! registered and has a task. Its pod's termination message repeats that, so nothing is missed of a
//! pod that lived between two reads.

mod access;
mod api;
mod create;
mod error;
mod http;
mod launcher;
mod overlay;
mod pod;
mod template;
mod watch;

pub use access::ClusterAccess;
pub use launcher::KubernetesLauncher;
pub use overlay::PodOverlay;
pub use template::{PodTemplate, QueueAccess, TERMINATION_LOG};
