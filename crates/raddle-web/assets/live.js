// One stream for all tabs, in a shared worker; without one, a stream for each visible tab.
'use strict';
function liveStream(base, send) {
  let source, session, idle, screens = [];
  const show = async () => {
    if (!session) return;
    const body = new URLSearchParams(screens.map(s => ['screen', s]));
    const answer = await fetch(base + '/live/' + session, { method: 'POST', body }).catch(() => 0);
    if (answer && answer.status === 404) setTimeout(open, 2000);
  };
  const open = () => {
    if (source) source.close();
    session = undefined;
    source = new EventSource(base + '/live');
    source.addEventListener('hello', e => { session = e.data; send({ kind: 'open' }); show(); });
    source.addEventListener('beat', () => send({ kind: 'beat' }));
    for (const kind of ['patch', 'newer', 'resync'])
      source.addEventListener(kind, e => send({ kind, at: e.lastEventId, ...JSON.parse(e.data) }));
    source.onerror = () => {
      session = undefined;
      send({ kind: 'lost' });
      // A refused stream does not come back by itself.
      if (source.readyState === 2) setTimeout(open, 2000);
    };
  };
  return {
    set(wanted) {
      screens = [...new Set(wanted)];
      clearTimeout(idle);
      if (screens.length && !source) return open();
      // Between two pages, and between two tabs, nothing is shown for a moment.
      if (!screens.length && source) idle = setTimeout(() => { source.close(); source = session = undefined; }, 20000);
      show();
    }
  };
}
if (typeof SharedWorkerGlobalScope !== 'undefined') {
  const ports = new Map();
  let stream, isOpen = false;
  const all = () => stream.set([...ports.values()].filter(Boolean));
  self.onconnect = connected => {
    const port = connected.ports[0];
    port.onmessage = ({ data }) => {
      if (data.gone) ports.delete(port); else ports.set(port, data.screen);
      stream ||= liveStream(data.base, message => {
        if (message.kind === 'open') isOpen = true;
        if (message.kind === 'lost') isOpen = false;
        for (const [port, screen] of ports)
          if (!message.topic || message.topic === screen) port.postMessage(message);
      });
      if (isOpen && data.screen) port.postMessage({ kind: 'open' });
      all();
    };
    port.start();
  };
}
