// What script adds to pages: live changes, keys, selections, and times that go on.
'use strict';
(() => {
  const $ = (query, from = document) => from.querySelector(query);
  const $$ = (query, from = document) => [...from.querySelectorAll(query)];
  const { base, worker, now } = document.body.dataset;
  const root = document.documentElement;
  const drift = now - Date.now();
  const say = text => put($('#said'), text);

  // Times.
  const age = seconds => {
    seconds = Math.max(0, Math.floor(seconds));
    return seconds < 120 ? seconds + 's' : seconds < 7200 ? Math.floor(seconds / 60) + 'm'
      : seconds < 172800 ? Math.floor(seconds / 3600) + 'h' : Math.floor(seconds / 86400) + 'd';
  };
  const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const tick = () => {
    const at = Date.now() + drift;
    for (const time of $$('time')) {
      const since = time.title.startsWith('since '), past = (at - Date.parse(time.title.replace('since ', ''))) / 1000;
      put(time, since ? age(past) : past < 0 ? 'in ' + age(-past) : age(past) + ' ago');
    }
    showState();
  };

  // Patches wait while the reader uses their element.
  const kept = new Map();
  let isHeld = false;
  const isUsed = element => {
    const active = document.activeElement, range = getSelection();
    return isHeld || (active && active !== document.body && element.contains(active))
      || (!range.isCollapsed && range.rangeCount && range.getRangeAt(0).intersectsNode(element))
      || $('details[open],dialog[open],input:checked', element) !== null;
  };
  const plain = element => element.outerHTML.replace(/<time.*?<\/time>/g, '');
  const patch = (id, html) => {
    const element = document.getElementById(id);
    if (!element) return id[0] === 'b' && reload();
    if (isUsed(element)) {
      kept.set(id, html);
      element.dataset.changed = '';
      return;
    }
    kept.delete(id);
    const template = document.createElement('template');
    template.innerHTML = html;
    const fresh = template.content.firstElementChild;
    if (!fresh || plain(fresh) === plain(element)) return;
    const before = $$('pre.text', element).map(pre => [pre.scrollTop, pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4]);
    element.replaceWith(fresh);
    $$('pre.text', fresh).forEach((pre, i) => {
      if (before[i]) pre.scrollTop = before[i][1] ? pre.scrollHeight : before[i][0];
    });
    prepare(fresh);
  };
  const flush = () => { for (const [id, html] of [...kept]) patch(id, html); };
  for (const event of ['focusout', 'selectionchange', 'change', 'toggle'])
    document.addEventListener(event, () => setTimeout(flush), true);
  let isReloading;
  const reload = async () => {
    if (isReloading) return;
    isReloading = true;
    const answer = await fetch(location.href).catch(() => 0);
    isReloading = false;
    if (!answer || !answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
    const blocks = $('.blocks');
    for (const old of [...blocks.children]) if (!fresh.getElementById(old.id) && !isUsed(old)) old.remove();
    $$('.blocks > *', fresh).forEach((block, i) => {
      if (!document.getElementById(block.id)) blocks.insertBefore(block.cloneNode(true), blocks.children[i]);
    });
    for (const element of $$('[id^="b-"],[id^="n-"]', fresh)) {
      const here = document.getElementById(element.id), isList = $('.bulk,form.grid', element);
      if (here && !isList) patch(element.id, element.outerHTML);
    }
    return true;
  };

  // The stream.
  let state = 'off', heard = Date.now();
  const showState = () => {
    const old = (Date.now() - heard) / 1000, live = $('#live');
    const is = state === 'off' || isHeld ? '' : state === 'lost' ? 'lost' : old > 10 ? 'late' : 'on';
    live.className = 'live ' + is;
    root.classList.toggle('old', is === 'lost' || is === 'late');
    put($('#live-text'), isHeld ? 'held' : is === 'on' ? state : is ? (is === 'lost' ? 'no connection, ' : '') + age(old) + ' old' : 'not live');
  };
  const more = count => {
    let button = $('#more');
    if (!count) return button && button.remove();
    if (!button) {
      button = Object.assign(document.createElement('a'), { id: 'more', className: 'button right' });
      $('.bulk').append(button);
    }
    put(button, count + (count >= 50 ? ' or more' : '') + ' new');
    button.href = location.pathname + location.search.replace(/[?&]before=\d+/, '');
  };
  const receive = message => {
    if (message.kind === 'lost') { state = 'lost'; return showState(); }
    const was = state;
    [state, heard] = ['live', Date.now()];
    if (message.kind === 'patch') patch(message.id, message.html);
    if (message.kind === 'newer') more(message.count);
    if (message.kind === 'resync' || (message.kind === 'open' && was === 'lost')) reload();
    showState();
  };
  const poll = async () => {
    if (document.hidden || isHeld) return;
    if (await reload()) [state, heard] = ['polling', Date.now()];
    else state = 'lost';
    showState();
  };
  const screen = () => {
    const rows = boxes().map(box => box.value).join(',');
    const path = location.pathname.slice(base.length) || '/';
    return path + location.search + ($('.bulk') ? (location.search ? '&' : '?') + 'rows=' + rows : '');
  };
  const connect = () => {
    let set;
    if (window.SharedWorker) {
      const port = new SharedWorker(worker, 'raddle-live').port;
      port.onmessage = ({ data }) => receive(data);
      set = wanted => port.postMessage({ base, screen: wanted });
      addEventListener('pagehide', () => port.postMessage({ base, gone: true }));
      port.start();
      start();
    } else {
      const script = Object.assign(document.createElement('script'), { src: worker });
      script.onload = () => {
        const stream = liveStream(base, receive);
        set = wanted => stream.set(wanted ? [wanted] : []);
        start();
      };
      document.head.append(script);
    }
    function start() {
      const update = () => set(document.hidden ? '' : screen());
      document.addEventListener('visibilitychange', update);
      addEventListener('pageshow', event => event.persisted && update());
      update();
      setTimeout(() => { if (state !== 'live') { poll(); setInterval(() => state !== 'live' && poll(), 5000); } }, 3000);
    }
  };

  // Selections.
  const boxes = () => $$('td input[name=tid]');
  const picked = () => {
    const n = boxes().filter(box => box.checked).length, text = $('#picked');
    for (const box of boxes()) box.closest('tr').classList.toggle('sel', box.checked);
    if (text) put(text, n ? n + ' selected' : 'Select tasks to act on');
    return n;
  };
  document.addEventListener('change', event => {
    if (event.target.id === 'all') for (const box of boxes()) box.checked = event.target.checked;
    picked();
  });
  document.addEventListener('submit', event => {
    const button = event.submitter;
    if (!button) return;
    const n = picked();
    if (button.closest('.bulk')) {
      if (!n) { event.preventDefault(); return say('Select tasks first'); }
      const isGrave = ['kill', 'delete'].includes(button.value) || n > 20;
      if (isGrave && !confirm(button.textContent + ' ' + n + (n > 1 ? ' tasks?' : ' task?'))) event.preventDefault();
    } else if (button.dataset.confirm && !confirm(button.dataset.confirm)) event.preventDefault();
  });

  const prepare = from => {
    for (const button of $$('.copy', from)) button.hidden = false;
  };
  document.addEventListener('click', event => {
    const button = event.target.closest('.copy');
    if (!button) return;
    const code = $('code', button.parentElement);
    getSelection().selectAllChildren(code);
    const copied = navigator.clipboard ? navigator.clipboard.writeText(code.textContent) : Promise.resolve(document.execCommand('copy'));
    copied.then(() => { put(button, 'Copied'); getSelection().removeAllRanges(); });
  });
  const theme = () => {
    const next = { undefined: 'light', light: 'dark', dark: '' }[root.dataset.theme];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    document.cookie = `raddle_theme=${next}; path=${base || '/'}; max-age=${next ? 31536000 : 0}; samesite=strict`;
    say('Theme: ' + (next || 'as the system'));
  };

  // Keys.
  let chord = 0;
  const places = { o: '/', t: '/tasks', f: '/failures', q: '/queues', w: '/workers', e: '/events', s: '/schedules' };
  const rows = () => $$('tbody tr').filter(row => $('a', row));
  const step = by => {
    const all = rows(), at = all.findIndex(row => row.contains(document.activeElement));
    const row = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    if (row) $('a', row).focus();
  };
  const keys = {
    '/': () => $('#q').select(),
    j: () => step(1),
    k: () => step(-1),
    x: () => {
      const row = rows().find(row => row.contains(document.activeElement)), box = row && $('input[name=tid]', row);
      if (box) { box.checked = !box.checked; picked(); }
    },
    t: theme,
    '?': () => { location.href = base + '/help'; },
    ' ': () => { isHeld = !isHeld; say(isHeld ? 'Held' : 'Live'); showState(); flush(); },
    g: () => { chord = Date.now(); }
  };
  document.addEventListener('keydown', event => {
    if (event.key === 'Escape') {
      for (const box of boxes()) box.checked = false;
      picked();
      return document.activeElement.blur();
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input,select,textarea,button,summary,[contenteditable]')) return;
    if (Date.now() - chord < 1500 && places[event.key]) { location.href = base + places[event.key]; return; }
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  for (const id of ['theme', 'all']) { const element = document.getElementById(id); if (element) element.hidden = false; }
  $('#theme').addEventListener('click', theme);
  prepare(document);
  picked();
  setInterval(tick, 1000);
  if ($('main').hasAttribute('data-live')) connect();
  showState();
})();
