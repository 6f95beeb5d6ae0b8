//! A cache for values that are expensive to make: shared while in use, and dropped after they were
//! unused for a while.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

/// A cache whose values expire when unused.
pub(super) struct TtlCache<K, V> {
    ttl: Duration,
    /// Runs the task that drops values.
    runtime: Handle,
    /// Capacity. Beyond it, the least recently used value is dropped.
    capacity: usize,
    entries: Mutex<HashMap<K, CacheEntry<V>>>,
}

struct CacheEntry<V> {
    value: Arc<V>,
    last_used: Instant,
}

impl<K, V> TtlCache<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Send + Sync + 'static,
{
    pub(super) fn new(ttl: Duration, capacity: usize, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            ttl,
            runtime,
            capacity,
            entries: Mutex::default(),
        })
    }

    /// The value of this key, made if it is missing.
    pub(super) fn get(self: &Arc<Self>, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(key) {
            entry.last_used = Instant::now();
            return Arc::clone(&entry.value);
        }
        if entries.is_empty() {
            // The task ends when the cache is empty, at the latest with its runtime.
            self.runtime.spawn(Arc::clone(self).drop_expired());
        }
        let oldest = entries
            .iter()
            .min_by_key(|(_, entry)| entry.last_used)
            .map(|(key, _)| key.clone());
        let oldest = oldest
            .filter(|_| entries.len() >= self.capacity)
            .and_then(|oldest| entries.remove(&oldest));
        let value = Arc::new(make());
        entries.insert(
            key.clone(),
            CacheEntry {
                value: Arc::clone(&value),
                last_used: Instant::now(),
            },
        );
        drop(entries);
        // Outside the lock, because a drop may take time. Users of the value keep their reference.
        drop(oldest);
        value
    }

    /// Drops values that were unused for `ttl`, until the cache is empty.
    async fn drop_expired(self: Arc<Self>) {
        loop {
            let (old, next) = {
                let (mut entries, now) = (self.lock(), Instant::now());
                let in_use = entries
                    .values_mut()
                    .filter(|entry| Arc::strong_count(&entry.value) > 1);
                in_use.for_each(|entry| entry.last_used = now);
                let old: Vec<_> = entries
                    .extract_if(|_, entry| now - entry.last_used >= self.ttl)
                    .collect();
                (old, entries.values().map(|entry| entry.last_used).min())
            };
            // Outside the lock, as in `get`.
            drop(old);
            let Some(next) = next else { return };
            // Clamped: `ttl` may be longer than an `Instant` can express.
            let due = next
                .checked_add(self.ttl)
                .unwrap_or_else(|| next + Duration::from_secs(1 << 30));
            tokio::time::sleep_until(due).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, CacheEntry<V>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unused_values_expire() {
        let cache = TtlCache::new(Duration::from_secs(60), 8, Handle::current());
        let get = |value: u32| cache.get(&1_u8, || value);
        let first = get(10);
        assert_eq!(*get(11), 10, "shared");
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(*get(12), 10, "in use");
        drop(first);
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert_eq!(*get(13), 10, "not expired yet");
        tokio::time::sleep(Duration::from_secs(121)).await;
        assert_eq!(*get(14), 14);
    }

    #[tokio::test(start_paused = true)]
    async fn least_recently_used_value_is_evicted() {
        let cache = TtlCache::new(Duration::from_secs(60), 3, Handle::current());
        for key in 0..100_u8 {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(*cache.get(&0, || 0), 0, "recently used");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(*cache.get(&key, || key), key);
            assert!(cache.lock().len() <= 3);
        }
        assert!(cache.lock().contains_key(&99) && !cache.lock().contains_key(&50));
        tokio::time::sleep(Duration::from_secs(130)).await;
        assert!(cache.lock().is_empty(), "expired");
    }
}
