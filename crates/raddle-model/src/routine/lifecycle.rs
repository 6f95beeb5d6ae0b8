//! Start-up and shutdown of a program's hosts, and the state that lives in between.
//!
//! `#[raddle::startup]` functions run once in each process that runs routines, before the first
//! one. The value that one returns is the process's state of that type.

use std::{
    any::{Any, TypeId, type_name},
    collections::HashMap,
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::RoutineFailure;

/// A value that a `#[raddle::startup]` function of this program returned. A routine takes it as an
/// argument, which its callers do not pass.
pub struct State<T: ?Sized>(Arc<T>);

/// A type-erased value of a start-up function.
pub type StateValue = Arc<dyn Any + Send + Sync>;
/// A start-up function.
pub type StartupFn = fn() -> Pin<Box<dyn Future<Output = Result<StateValue, String>> + Send>>;
/// A shutdown function.
pub type ShutdownFn = fn() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// A registered start-up or shutdown function.
#[derive(Clone, Copy, Debug)]
pub enum LifecycleHook {
    /// Runs before the first routine.
    Startup {
        /// Name of the function.
        name: &'static str,
        /// The function.
        run: StartupFn,
    },
    /// Runs after the last routine.
    Shutdown {
        /// Name of the function.
        name: &'static str,
        /// The function.
        run: ShutdownFn,
    },
}

inventory::collect!(LifecycleHook);

/// A start-up function failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the start-up function '{name}' failed: {reason}")]
pub struct StartupError {
    name: &'static str,
    reason: String,
}

static STATES: Mutex<Option<HashMap<TypeId, StateValue>>> = Mutex::new(None);

/// Returns whether this program has start-up or shutdown functions.
pub fn has_lifecycle_hooks() -> bool {
    inventory::iter::<LifecycleHook>
        .into_iter()
        .next()
        .is_some()
}

/// Runs the start-up functions of this program, one after the other, and keeps their values.
pub async fn run_startup() -> Result<(), StartupError> {
    for hook in inventory::iter::<LifecycleHook> {
        if let LifecycleHook::Startup { name, run } = *hook {
            let value = run()
                .await
                .map_err(|reason| StartupError { name, reason })?;
            let of_type = (*value).type_id();
            if states()
                .get_or_insert_default()
                .insert(of_type, value)
                .is_some()
            {
                let reason = "another start-up function has returned a value of the same type: give one of them a type of its own".into();
                return Err(StartupError { name, reason });
            }
        }
    }
    Ok(())
}

/// Runs the shutdown functions of this program, one after the other, then drops the state. Returns
/// what failed.
pub async fn run_shutdown() -> Vec<String> {
    let mut failures = Vec::new();
    for hook in inventory::iter::<LifecycleHook> {
        if let LifecycleHook::Shutdown { name, run } = *hook
            && let Err(reason) = run().await
        {
            failures.push(format!("the shutdown function '{name}' failed: {reason}"));
        }
    }
    states().take();
    failures
}

/// Returns the state of this type, if a start-up function returned one.
pub fn state<T: Send + Sync + 'static>() -> Option<State<T>> {
    let value = states().as_ref()?.get(&TypeId::of::<T>()).cloned()?;
    value.downcast().ok().map(State)
}

/// Keeps a value as the state of its type, in place of an earlier one.
pub fn set_state<T: Send + Sync + 'static>(value: T) -> State<T> {
    let value = Arc::new(value);
    states()
        .get_or_insert_default()
        .insert(TypeId::of::<T>(), Arc::clone(&value) as StateValue);
    State(value)
}

/// Takes the state of this type away, before the shutdown functions of others drop it.
pub fn take_state<T: Send + Sync + 'static>() -> Option<Arc<T>> {
    let value = states().as_mut()?.remove(&TypeId::of::<T>())?;
    value.downcast().ok()
}

/// Returns the state of this type, or fails the attempt.
pub fn required_state<T: Send + Sync + 'static>() -> Result<State<T>, RoutineFailure> {
    state().ok_or_else(|| RoutineFailure::Failed {
        message: format!(
            "there is no state of type {}: write a #[raddle::startup] function that returns it",
            type_name::<T>()
        ),
        value: None,
    })
}

fn states() -> MutexGuard<'static, Option<HashMap<TypeId, StateValue>>> {
    STATES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: ?Sized> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> Clone for State<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> From<T> for State<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for State<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("State").field(&&*self.0).finish()
    }
}
