//! Things that are dear to make and cheap to keep: made when they are first needed, shared, and let go of when nobody has needed them for a while.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{runtime::Handle, task::AbortHandle, time::Instant};

/// Keeps what was made, by its key.
pub(super) struct ResourcePool<K, V> {
    ttl: Duration,
    /// Where things are let go of.
    runtime: Handle,
    /// So many are kept. If there are more, the one that was last used longest ago is let go of.
    most: usize,
    kept: Mutex<HashMap<K, Kept<V>>>,
}

struct Kept<V> {
    value: Arc<V>,
    last_used: Instant,
    /// Waits until nobody has used it for long enough.
    ending: Option<AbortHandle>,
}

impl<K, V> ResourcePool<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Send + Sync + 'static,
{
    pub(super) fn new(ttl: Duration, most: usize, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { ttl, runtime, most, kept: Mutex::default() })
    }

    /// What is kept under this key, or was made now.
    pub(super) fn get(self: &Arc<Self>, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut kept = self.lock();
        if let Some(known) = kept.get_mut(key) {
            known.last_used = Instant::now();
            return Arc::clone(&known.value);
        }
        let value = Arc::new(make());
        // Ends when what it is about has been let go of, at the latest with the runtime that it belongs to.
        let ending = self.runtime.spawn(let_go_of(Arc::clone(self), key.clone(), Arc::downgrade(&value)));
        let ending = Some(ending.abort_handle());
        let oldest = (kept.len() >= self.most).then(|| remove_oldest(&mut kept)).flatten();
        kept.insert(key.clone(), Kept { value: Arc::clone(&value), last_used: Instant::now(), ending });
        drop(kept);
        // Outside of the lock: what is dropped may take its time. Whoever uses it goes on to.
        oldest.iter().flat_map(|oldest| &oldest.ending).for_each(AbortHandle::abort);
        drop(oldest);
        value
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Kept<V>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until nobody has used it for long enough.
async fn let_go_of<K, V>(pool: Arc<ResourcePool<K, V>>, key: K, value: Weak<V>)
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Send + Sync + 'static,
{
    let ending = Ending { pool, key, value };
    let ttl = ending.pool.ttl;
    // As far away as there is, if it is to be kept for longer than that.
    let later = |from: Instant| from.checked_add(ttl).unwrap_or_else(|| from + Duration::from_secs(1 << 30));
    let mut due = later(Instant::now());
    loop {
        tokio::time::sleep_until(due).await;
        let mut kept = ending.pool.lock();
        let Some(known) = ending.find(&mut kept) else { return };
        if Arc::strong_count(&known.value) > 1 {
            known.last_used = Instant::now();
        }
        due = later(known.last_used);
        if due <= Instant::now() {
            return;
        }
    }
}

fn remove_oldest<K: Clone + Eq + Hash, V>(kept: &mut HashMap<K, Kept<V>>) -> Option<Kept<V>> {
    let oldest = kept.iter().min_by_key(|(_, known)| known.last_used).map(|(key, _)| key.clone())?;
    kept.remove(&oldest)
}

/// Lets go of what it is about when it is dropped: because nobody needs it, or because the runtime ends that it belongs to.
struct Ending<K: Eq + Hash, V> {
    pool: Arc<ResourcePool<K, V>>,
    key: K,
    value: Weak<V>,
}

impl<K: Eq + Hash, V> Ending<K, V> {
    /// What it is about, if that is still what is kept.
    fn find<'a>(&self, kept: &'a mut HashMap<K, Kept<V>>) -> Option<&'a mut Kept<V>> {
        kept.get_mut(&self.key).filter(|known| std::ptr::eq(Arc::as_ptr(&known.value), self.value.as_ptr()))
    }
}

impl<K: Eq + Hash, V> Drop for Ending<K, V> {
    fn drop(&mut self) {
        let mut kept = self.pool.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let old = if self.find(&mut kept).is_some() { kept.remove(&self.key) } else { None };
        drop(kept);
        // Outside of the lock: what is dropped may take its time.
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_nobody_needs_for_a_while_is_let_go_of() {
        let pool = ResourcePool::new(Duration::from_secs(60), 8, Handle::current());
        let made = |value: u32| pool.get(&1_u8, || value);
        let first = made(10);
        assert_eq!(*made(11), 10, "it is shared");
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(*made(12), 10, "it was in use");
        drop(first);
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert_eq!(*made(13), 10, "it is kept for a while");
        tokio::time::sleep(Duration::from_secs(121)).await;
        assert_eq!(*made(14), 14);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_kept_than_there_is_room_for() {
        let pool = ResourcePool::new(Duration::from_secs(60), 3, Handle::current());
        for key in 0..100_u8 {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(*pool.get(&0, || 0), 0, "what is used stays");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(*pool.get(&key, || key), key);
            assert!(pool.lock().len() <= 3);
        }
        assert!(pool.lock().contains_key(&99) && !pool.lock().contains_key(&50));
        tokio::time::sleep(Duration::from_secs(130)).await;
        assert!(pool.lock().is_empty(), "and it goes in its time");
    }
}
