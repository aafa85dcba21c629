/** `node dist/main.js URL BODY`: preview and create a backfill; end the one that is in the way, if there is one. */
import { argv } from "node:process";

import { connect, create, steer, type CreateBackfill } from "./client.js";

const [url = "http://127.0.0.1:5000/api/v2", text = "{}"] = argv.slice(2);
const body = JSON.parse(text) as CreateBackfill;
const print = (line: object): void => console.log(JSON.stringify(line));

const api = connect(url, { onWait: (seconds) => print({ wait: seconds }) });
const { data: preview } = await api.POST("/backfills/dry_run", { body });
if (preview) print({ preview: preview.counts, first: preview.backfills[0]?.logical_date ?? null });

const outcome = await create(api, body);
print(outcome);
if ("active" in outcome) {
  for (const what of ["pause", "get", "cancel"] as const) {
    const { id, state, is_paused, dag_run_counts } = await steer(api, outcome.active, what);
    print({ [what]: { id, state, is_paused, queued: dag_run_counts.queued } });
  }
} else if ("invalid" in outcome) {
  print({ to_date: outcome.invalid["to_date"]?.join(" ") ?? "is right" });
}
