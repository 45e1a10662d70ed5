<?php
// A worker in PHP, with nothing but PHP itself:
//   php examples/worker_http.php http://127.0.0.1:2223 jobs [COUNT]
// It prints each item; put the work in its place. Set STANIEL_TOKEN to a user's token where there are users.

[, $server, $queue] = $argv;
$left = (int) ($argv[3] ?? PHP_INT_MAX);
$url = "$server/api/queues/" . rawurlencode($queue);

function ask(string $url, array $body): ?array
{
    $headers = ["Content-Type: application/json"];
    if ($token = getenv("STANIEL_TOKEN")) {
        $headers[] = "Authorization: Bearer $token";
    }
    $http = ["method" => "POST", "header" => $headers, "content" => json_encode($body), "timeout" => 60];
    $answer = @file_get_contents($url, false, stream_context_create(["http" => $http]));
    return $answer === false ? null : json_decode($answer, true);
}

while ($left > 0) {
    $answer = ask("$url/reserve", ["wait_ms" => 20000, "timeout_ms" => 60000]);
    if ($answer === null) {
        sleep(1); // the server is away, or refuses: what was reserved comes back by itself
        continue;
    }
    foreach ($answer["items"] as $item) {
        $data = $item["encoding"] === "base64" ? base64_decode($item["data"]) : $item["data"];
        echo "$data\n"; // the work; deliveries above 1 say that somebody may have begun it before
        // Sent again until it is answered: a second confirmation of the same token does no harm.
        while (ask("$url/reserved/confirm", ["tokens" => [$item["token"]]]) === null) {
            sleep(1);
        }
        $left--;
    }
}
