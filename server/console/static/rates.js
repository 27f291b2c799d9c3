// Rates out of counts that only grow, by what they were when they were last read.

const WINDOW_S = 3;

export class Rates {
  #seen = new Map();

  // Takes a count, and returns its growth per second, averaged over some seconds; null the first time.
  per_s(name, value, now_us) {
    if (value === null || value === undefined) return null;
    const before = this.#seen.get(name);
    if (!before) {
      this.#seen.set(name, { value, now_us, rate: null });
      return null;
    }
    const seconds = (now_us - before.now_us) / 1e6;
    if (seconds <= 0) return before.rate;
    // A count is smaller than before when what it counted was truncated, or the server was started again.
    const last = Math.max(0, value - before.value) / seconds;
    const part = before.rate === null ? 1 : 1 - Math.exp(-seconds / WINDOW_S);
    const rate = (before.rate ?? 0) + part * (last - (before.rate ?? 0));
    this.#seen.set(name, { value, now_us, rate: rate < 0.005 ? 0 : rate });
    return this.#seen.get(name).rate;
  }
}
