//! The launcher whose workers are pods of a Kubernetes cluster.
//!
//! | file | what |
//! | --- | --- |
//! | `template.rs`, `overlay.rs` | **what a pod may do**: from a model to a pod; what the user lays over it. Pure |
//! | `pod.rs` | what the API says of a pod, and what that means. Pure |
//! | `access.rs` | where the API server is, and whom it takes us for |
//! | `http.rs`, `api.rs`, `fault.rs` | one request; the four calls that are needed; what their failures mean |
//! | `create.rs`, `watch.rs` | making a pod, removing one; following all of a class |
//! | `pods.rs` | the launcher: what is known of each pod, and what is told of it |
//!
//! Of the API four verbs on pods are used: create, list, watch and delete. A worker says nothing to the launcher while it lives: that it is
//! registered and has its task is seen in the registry, which the spawner looks at anyway. What it had to say is in its pod's termination
//! message when it ends, so that nothing is missed of one that lived between two looks.

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
