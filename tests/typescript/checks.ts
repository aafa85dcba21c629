/** What the compiler must know about the API, checked by compiling: wrong use does not compile. */
import { connect, type Backfill, type CreateBackfill, type Outcome } from "./client.js";
import type { operations } from "./schema.js";

type Problem<Name extends keyof operations, Status extends number> = operations[Name]["responses"] extends {
  [S in Status]: { content: { "application/problem+json": infer Body } };
}
  ? Body
  : never;
type Without<Status extends number> = {
  [Name in keyof operations]: Status extends keyof operations[Name]["responses"] ? never : Name;
}[keyof operations];

/** Exactly these never need the database: every other operation has a 503. */
export const without503: Record<Without<503>, true> = { getOpenapi: true };

/** Whatever has a default can be left out. */
export const least: CreateBackfill = { dag_id: "daily_climate", from_date: "2015-03-01", to_date: "2015-04-01" };

export function rightUse(locked: Problem<"createBackfill", 503>, invalid: Problem<"listBackfills", 422>): string[] {
  return [locked.detail, ...(invalid.errors["limit"] ?? [])];
}

export async function wrongUse(backfill: Backfill, outcome: Outcome): Promise<void> {
  const api = connect("/api/v2");
  // @ts-expect-error unknown field
  const unknownField: CreateBackfill = { ...least, reproces_behavior: "none" };
  // @ts-expect-error missing fields in a request
  await api.POST("/backfills", { body: { dag_id: "daily_climate" } });
  // @ts-expect-error wrong value
  const wrongValue: CreateBackfill = { ...least, reprocess_behavior: "all" };
  // @ts-expect-error wrong type
  const wrongType: CreateBackfill = { ...least, max_active_runs: "3" };
  // @ts-expect-error a date is a string
  const wrongDate: CreateBackfill = { ...least, from_date: 1425168000 };
  // @ts-expect-error missing field
  const missing: CreateBackfill = { dag_id: "daily_climate", from_date: "2015-03-01" };
  // @ts-expect-error wrong path
  await api.GET("/backfill/{backfill_id}", { params: { path: { backfill_id: 1 } } });
  // @ts-expect-error wrong method
  await api.POST("/backfills/{backfill_id}/pause", { params: { path: { backfill_id: 1 } } });
  // @ts-expect-error missing parameter
  await api.GET("/backfills/{backfill_id}");
  // @ts-expect-error wrong type of a parameter
  await api.GET("/backfills/{backfill_id}", { params: { path: { backfill_id: "1" } } });
  // @ts-expect-error wrong value of a parameter
  await api.GET("/backfills", { params: { query: { order_by: "created_at" } } });
  // @ts-expect-error no such state
  const done = backfill.state === "done";
  // @ts-expect-error it may be null
  const ended: string = backfill.completed_at;
  // @ts-expect-error there may be none for this field
  const messages: string[] = (outcome as { invalid: Record<string, string[]> }).invalid["to_date"];
  // @ts-expect-error a 503 names no field
  const errors = (locked: Problem<"createBackfill", 503>) => locked.errors;
  // @ts-expect-error a 503 names no backfill
  const id = (locked: Problem<"createBackfill", 503>) => locked.backfill_id;
  // @ts-expect-error a 409 does not always name a backfill
  const active = (conflict: Problem<"createBackfill", 409>): number => conflict.backfill_id;
  console.log(unknownField, wrongValue, wrongType, wrongDate, missing, done, ended, messages, errors, id, active);
}
