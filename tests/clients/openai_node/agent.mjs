// An agent on the openai package for Node; see tests/clients/program.py for what it reads, plays and writes.

import readline from "node:readline";
import OpenAI from "openai";

const questions = (run) => [
  `${run.topic}: what is the weather in Paris? [[call weather {"city": "Paris"}]][[call weather {"city": "Oslo"}]]`,
  'And in Oslo tomorrow? [[call forecast {"city": "Oslo", "days": 1}]]',
];
const CALLS = 5;

const use = {
  weather: ({ city }) => `${city.length} °C in ${city}`,
  forecast: ({ city, days }) => `rain in ${city} in ${days} days; and now: [[call weather {"city": "${city}"}]]`,
};
const city = { city: { type: "string" } };
const SCHEMAS = {
  weather: { type: "object", properties: city, required: ["city"] },
  forecast: { type: "object", properties: { ...city, days: { type: "integer" } }, required: ["city", "days"] },
};
const TOOLS = Object.entries(SCHEMAS).map(([name, parameters]) => ({ type: "function", function: { name, parameters } }));

const client = (run, options = {}) =>
  new OpenAI({ baseURL: run.base_url, apiKey: "sk-agent", defaultHeaders: run.headers, ...options });

const results = (message) =>
  message.tool_calls.map((call) => ({
    role: "tool",
    tool_call_id: call.id,
    content: use[call.function.name](JSON.parse(call.function.arguments)),
  }));

/** The conversation; `ask(body, options)` makes one call and gives what came and the assistant's message. */
async function talk(run, ask) {
  const messages = [];
  const seen = [];
  for (const content of questions(run)) {
    messages.push({ role: "user", content });
    for (;;) {
      const last = seen.length === CALLS - 1 ? { headers: run.last } : {};
      const [found, message] = await ask({ model: run.model, messages, tools: TOOLS }, last);
      seen.push(found);
      messages.push(message);
      if (!message.tool_calls?.length) break;
      messages.push(...results(message));
    }
  }
  return seen;
}

function plain(run) {
  const api = client(run);
  return talk(run, async (body, options) => {
    const answer = await api.chat.completions.create(body, options);
    return [answer, answer.choices[0].message];
  });
}

function stream(run) {
  const api = client(run);
  return talk(run, async (body, options) => {
    const stream = api.chat.completions.stream({ ...body, stream_options: { include_usage: true } }, options);
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    const { role, content, tool_calls } = (await stream.finalChatCompletion()).choices[0].message;
    const calls = tool_calls?.map(({ id, type, function: f }) => ({
      id,
      type,
      function: { name: f.name, arguments: f.arguments },
    }));
    return [chunks, { role, content, ...(calls?.length ? { tool_calls: calls } : {}) }];
  });
}

/** The same conversation by the responses API, plain and as a stream. */
async function responses(run, streamed) {
  const api = client(run);
  const tools = Object.entries(SCHEMAS).map(([name, parameters]) => ({ type: "function", name, parameters }));
  const input = [];
  const seen = [];
  let number = 0;
  for (const content of questions(run)) {
    input.push({ role: "user", content });
    for (;;) {
      const last = number === CALLS - 1 ? { headers: run.last } : {};
      const body = { model: run.model, input, tools };
      number += 1;
      let response;
      if (streamed) {
        const events = api.responses.stream(body, last);
        for await (const event of events) seen.push(event);
        response = await events.finalResponse();
      } else {
        response = await api.responses.create(body, last);
        seen.push(response);
      }
      const calls = response.output.filter((item) => item.type === "function_call");
      input.push(...response.output.map(({ parsed_arguments, ...item }) => item));
      if (!calls.length) break;
      for (const { call_id, name, arguments: given } of calls) {
        input.push({ type: "function_call_output", call_id, output: use[name](JSON.parse(given)) });
      }
    }
  }
  return seen;
}

/** The package's own loop over tools. */
async function tools(run) {
  const functions = TOOLS.map((tool) => ({
    type: "function",
    function: { ...tool.function, function: use[tool.function.name], parse: JSON.parse },
  }));
  const messages = [{ role: "user", content: `${run.topic}: ${questions(run)[1]}` }];
  const runner = client(run).chat.completions.runTools({ model: run.model, messages, tools: functions });
  return [await runner.finalContent(), runner.messages];
}

async function raw(run) {
  const messages = [{ role: "user", content: "Say who you are" }];
  const { data, response } = await client(run).chat.completions.create({ model: run.model, messages }).withResponse();
  return [response.status, Object.fromEntries(response.headers), data];
}

async function errors(run) {
  const api = client(run, { maxRetries: 0 });
  const found = [];
  for (const change of [{ model: "no-such-model" }, { messages: [] }]) {
    const body = { model: run.model, messages: [{ role: "user", content: "hello" }], ...change };
    try {
      await api.chat.completions.create(body);
    } catch (error) {
      found.push([error.constructor.name, error.status, error.message, error.error, error.code, error.type]);
    }
  }
  return found;
}

/** The server is busy at first: the package repeats the call by itself. */
async function busy(run) {
  const messages = [{ role: "user", content: "hello" }];
  return client(run, { maxRetries: 1 }).chat.completions.create({ model: run.model, messages });
}

async function leaves(run) {
  const messages = [{ role: "user", content: "hello" }];
  const chunks = await client(run).chat.completions.create({ model: run.model, messages, stream: true });
  for await (const chunk of chunks) {
    if (chunk.choices[0].delta.content) {
      chunks.controller.abort();
      return [chunk];
    }
  }
  return [];
}

const SCENES = {
  plain,
  stream,
  responses: (run) => responses(run, false),
  "responses stream": (run) => responses(run, true),
  tools,
  raw,
  errors,
  busy,
  leaves,
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const run = JSON.parse(line);
  try {
    console.log(JSON.stringify({ transcript: await SCENES[run.scene](run) }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.stack) }));
  }
}
