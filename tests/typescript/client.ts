/** A typed client. `npm run generate` makes schema.d.ts from openapi.yaml; this file can be copied as it is. */
import createClient, { type Client } from "openapi-fetch";

import type { components, paths } from "./schema.js";

export type Api = Client<paths>;
export type Backfill = components["schemas"]["Backfill"];
export type CreateBackfill = components["schemas"]["CreateBackfill"];

/** What came of a request to create: a backfill, or the one that is in the way, or messages by field. */
export type Outcome =
  | { created: Backfill }
  | { active: number; detail: string }
  | { invalid: Record<string, string[]>; detail: string };

export interface Patience {
  /** How often a request is sent at most. */
  tries?: number;
  /** Is told when a 503 makes it wait. */
  onWait?: (seconds: number) => void;
}

/** Connect to an API, such as `https://example.com/api/v2`. A 503 has changed nothing, so it is sent again. */
export function connect(baseUrl: string, { tries = 10, onWait }: Patience = {}): Api {
  const patientFetch = async (request: Request): Promise<Response> => {
    for (let left = tries; ; left -= 1) {
      const response = await fetch(request.clone());
      if (response.status !== 503 || left <= 1) return response;
      const seconds = Number(response.headers.get("Retry-After")) || 1;
      onWait?.(seconds);
      await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    }
  };
  return createClient<paths>({ baseUrl, fetch: patientFetch });
}

/** Create a backfill. The key makes it safe to send the request again even where its answer was lost. */
export async function create(api: Api, body: CreateBackfill, key: string = crypto.randomUUID()): Promise<Outcome> {
  const { data, error, response } = await api.POST("/backfills", {
    body,
    params: { header: { "Idempotency-Key": key } },
  });
  if (data) return { created: data };
  if (!isProblem(response)) throw new Error(`HTTP ${response.status}`);
  if ("errors" in error) return { invalid: error.errors, detail: error.detail };
  if ("backfill_id" in error && error.backfill_id) return { active: error.backfill_id, detail: error.detail };
  throw new Error(error.detail);
}

/** Get a backfill, or pause, unpause or cancel it. */
export async function steer(api: Api, id: number, what: "get" | "pause" | "unpause" | "cancel"): Promise<Backfill> {
  const params = { path: { backfill_id: id } };
  const { data, error, response } =
    what === "get"
      ? await api.GET("/backfills/{backfill_id}", { params })
      : await api.PUT(`/backfills/{backfill_id}/${what}`, { params });
  if (data) return data;
  throw new Error(isProblem(response) ? error.detail : `HTTP ${response.status}`);
}

/** Tell this API's own errors, which all have a `detail`, from those of what lies between. */
function isProblem(response: Response): boolean {
  return response.headers.get("Content-Type")?.startsWith("application/problem+json") ?? false;
}
