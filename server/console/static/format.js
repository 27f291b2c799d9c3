// Figures as people read them, in the same words as the command line.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  let unit = 0;
  while (unit < SIZES.length - 1 && Math.abs(bytes) >= 1024) {
    bytes /= 1024;
    unit += 1;
  }
  return `${bytes.toFixed(unit === 0 || bytes >= 100 ? 0 : 1)} ${SIZES[unit]}`;
}

export function count(number) {
  return number === null || number === undefined ? "" : number.toLocaleString("en");
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "";
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (perSecond >= unit) return `${digits(perSecond / unit)} ${name}/s`;
  }
  return `${digits(perSecond)}/s`;
}

export function byteRate(perSecond) {
  return perSecond === null || perSecond === undefined ? "" : `${size(perSecond)}/s`;
}

function digits(number) {
  return number === 0 ? "0" : number.toFixed(number >= 100 ? 0 : number >= 10 ? 1 : 2);
}

export function time(us) {
  if (us === null || us === undefined) return "";
  const moment = new Date(us / 1000);
  return Number.isNaN(moment.getTime()) ? `${us} us` : moment.toISOString().replace("T", " ");
}

export function duration(seconds) {
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function scaling(policy) {
  if (policy.kind === "fixed") return policy.segment_count ? `fixed at ${policy.segment_count}` : "fixed";
  const target = policy.kind === "bytes" ? byteRate(policy.target_per_s) : `${count(policy.target_per_s)} events/s`;
  return `${target} per segment, factor ${policy.factor}, at least ${policy.min_segments}`;
}

export function retention(policy) {
  if (!policy) return "everything is kept";
  const bounds = [
    policy.min_bytes !== null && `at least ${size(policy.min_bytes)}`,
    policy.max_bytes !== null && `at most ${size(policy.max_bytes)}`,
    policy.min_age_s !== null && `at least ${duration(policy.min_age_s)}`,
    policy.max_age_s !== null && `at most ${duration(policy.max_age_s)}`,
  ].filter(Boolean);
  return `by ${policy.kind}${bounds.length ? `: ${bounds.join(", ")}` : ""}`;
}
