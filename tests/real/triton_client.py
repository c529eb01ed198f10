"""Triton's own gRPC client at work: `python triton_client.py ADDRESS TASK JSON`; prints one JSON object.

Runs in the environment of the server, which has `tritonclient`; imports nothing of this project.
"""

import json
import queue
import sys
import threading
import time

import numpy as np
import tritonclient.grpc as triton


def floats(values):
    given = triton.InferInput("x", [1, len(values)], "FP32")
    given.set_data_from_numpy(np.array([values], dtype=np.float32))
    return [given]


def words(text, count):
    prompt = triton.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    limit = triton.InferInput("max_tokens", [1], "INT32")
    limit.set_data_from_numpy(np.array([count], dtype=np.int32))
    return [prompt, limit]


def infer(client, *, values=(1.0, 2.0), request_id="", times=1, headers=None, model="double"):
    """`times` calls at once."""
    out = []

    def one(number):
        try:
            answer = client.infer(model, floats(values), request_id=f"{request_id}{number}", headers=headers)
        except triton.InferenceServerException as error:
            out.append({"error": error.message(), "status": error.status()})
            return
        out.append({"y": answer.as_numpy("y").tolist(), "batch": int(answer.as_numpy("batch")[0, 0])})

    threads = [threading.Thread(target=one, args=(number,)) for number in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"answers": out}


def stream(client, *, requests, model="count", want_final=False, leave_after=None):
    """`requests`: [id, word, count] each, all on one stream. Leaves after so many answers, where that is given."""
    came = queue.Queue()
    client.start_stream(callback=lambda result, error: came.put((time.time_ns(), result, error)))
    for request_id, word, count in requests:
        client.async_stream_infer(
            model, words(word, count), request_id=request_id, enable_empty_final_response=want_final
        )
    out, left_at = [], None
    while True:
        try:
            at, result, error = came.get(timeout=1.0)
        except queue.Empty:
            break
        if error is not None:
            out.append({"error": error.message(), "status": error.status()})
            break
        message = result.get_response()
        text = result.as_numpy("text_output")
        out.append(
            {
                "id": message.id,
                "text": None if text is None else text.reshape(-1)[0].decode(),
                "final": message.parameters["triton_final_response"].bool_param,
                "at_ns": at,
            }
        )
        if leave_after is not None and len(out) == leave_after:
            left_at = time.time_ns()
            break
        texts, ends = sum(answer["text"] is not None for answer in out), sum(answer["final"] for answer in out)
        if texts == sum(count for _, _, count in requests) and (not want_final or ends == len(requests)):
            break
    client.stop_stream(cancel_requests=left_at is not None)
    return {"answers": out, "left_at_ns": left_at}


def about(client):
    """What is not inference."""
    try:
        client.get_model_repository_index()
        refused = None
    except triton.InferenceServerException as error:
        refused = error.status()
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready("double"),
        "name": client.get_server_metadata().name,
        "config": client.get_model_config("count").config.name,
        "index": refused,
    }


def main():
    _, address, task, given = sys.argv
    with triton.InferenceServerClient(address) as client:
        print(json.dumps({"infer": infer, "stream": stream, "about": about}[task](client, **json.loads(given))))


if __name__ == "__main__":
    main()
