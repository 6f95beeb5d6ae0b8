//! A proxy that cuts connections after a request was executed and before its reply arrives.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A proxy on a free port.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    cuts: Arc<AtomicU32>,
    spared: Arc<AtomicU32>,
    listening: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("loopback has a free port");
        let own = listener.local_addr().expect("it is bound").port();
        let (cuts, spared) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let listening = tokio::spawn({
            let (cuts, spared) = (Arc::clone(&cuts), Arc::clone(&spared));
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                        tokio::spawn(carry(
                            client,
                            server,
                            Arc::clone(&cuts),
                            Arc::clone(&spared),
                        ));
                    }
                }
            }
        });
        Self {
            port: own,
            cuts,
            spared,
            listening,
        }
    }

    /// Cuts the connection instead of forwarding the next reply.
    pub(crate) fn cut_next_reply(&self) {
        self.cuts.store(1, Ordering::SeqCst);
    }

    /// Forwards this many replies, and cuts the connection instead of forwarding the next.
    pub(crate) fn cut_one_after(&self, answers: u32) {
        self.spared.store(answers, Ordering::SeqCst);
        self.cuts.store(1, Ordering::SeqCst);
    }

    /// Forwards this many replies, and then cuts every connection at its next reply.
    pub(crate) fn cut_all_after(&self, answers: u32) {
        self.spared.store(answers, Ordering::SeqCst);
        self.cuts.store(u32::MAX, Ordering::SeqCst);
    }

    /// Stops cutting.
    pub(crate) fn restore(&self) {
        self.cuts.store(0, Ordering::SeqCst);
    }

    /// Whether the connection was cut.
    pub(crate) fn has_cut(&self) -> bool {
        self.cuts.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    cuts: Arc<AtomicU32>,
    spared: Arc<AtomicU32>,
) {
    let take = |from: &AtomicU32| {
        from.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
    };
    let (mut question, mut answer) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut question) => match read {
                Ok(read) if read > 0 && server.write_all(&question[..read]).await.is_ok() => {}
                _ => return,
            },
            read = server.read(&mut answer) => match read {
                Ok(read) if read > 0 => {
                    let cut = !take(&spared) && take(&cuts);
                    if cut || client.write_all(&answer[..read]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}
