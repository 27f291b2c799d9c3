// Does something again and again until a view is left; not while the page is hidden.

export function every(seconds, signal, act, failed) {
  let timer = 0;
  async function turn() {
    try {
      if (!document.hidden) await act();
      failed(null);
    } catch (error) {
      if (signal.aborted) return;
      failed(error);
    }
    if (!signal.aborted) timer = setTimeout(turn, seconds * 1000);
  }
  signal.addEventListener("abort", () => clearTimeout(timer));
  return turn();
}
