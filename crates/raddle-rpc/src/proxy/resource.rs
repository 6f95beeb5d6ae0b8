//! Things that are dear to make and cheap to keep: made when they are first needed, shared, and let go of when nobody has needed them for a while.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

/// Keeps what was made, by its key.
pub(super) struct ResourcePool<K, V> {
    ttl: Duration,
    /// Where things are let go of.
    runtime: Handle,
    /// So many are kept. If there are more, the one that was last used longest ago is let go of.
    most: usize,
    kept: Mutex<HashMap<K, CachedResource<V>>>,
}

struct CachedResource<V> {
    value: Arc<V>,
    last_used: Instant,
}

impl<K, V> ResourcePool<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Send + Sync + 'static,
{
    pub(super) fn new(ttl: Duration, most: usize, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            ttl,
            runtime,
            most,
            kept: Mutex::default(),
        })
    }

    /// What is kept under this key, or was made now.
    pub(super) fn get(self: &Arc<Self>, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut kept = self.lock();
        if let Some(known) = kept.get_mut(key) {
            known.last_used = Instant::now();
            return Arc::clone(&known.value);
        }
        if kept.is_empty() {
            // Ends when nothing is kept any more, at the latest with the runtime that it belongs to.
            self.runtime.spawn(Arc::clone(self).let_go());
        }
        let oldest = kept
            .iter()
            .min_by_key(|(_, known)| known.last_used)
            .map(|(key, _)| key.clone());
        let oldest = oldest
            .filter(|_| kept.len() >= self.most)
            .and_then(|oldest| kept.remove(&oldest));
        let value = Arc::new(make());
        kept.insert(
            key.clone(),
            CachedResource {
                value: Arc::clone(&value),
                last_used: Instant::now(),
            },
        );
        drop(kept);
        // Outside of the lock: what is dropped may take its time. Whoever uses it goes on to.
        drop(oldest);
        value
    }

    /// Releases what has been unused for long enough, until nothing is kept.
    async fn let_go(self: Arc<Self>) {
        loop {
            let (old, next) = {
                let (mut kept, now) = (self.lock(), Instant::now());
                let in_use = kept
                    .values_mut()
                    .filter(|known| Arc::strong_count(&known.value) > 1);
                in_use.for_each(|known| known.last_used = now);
                let old: Vec<_> = kept
                    .extract_if(|_, known| now - known.last_used >= self.ttl)
                    .collect();
                (old, kept.values().map(|known| known.last_used).min())
            };
            // Outside of the lock, as above.
            drop(old);
            let Some(next) = next else { return };
            // As far away as there is, if it is to be kept for longer than that.
            let due = next
                .checked_add(self.ttl)
                .unwrap_or_else(|| next + Duration::from_secs(1 << 30));
            tokio::time::sleep_until(due).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, CachedResource<V>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
