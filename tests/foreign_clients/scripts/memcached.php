<?php
// Both of PHP's extensions, by name: put, take, read reliably, and say what came.
[, $class, $port] = $argv;
$client = new $class();
$client->addServer("127.0.0.1", (int) $port);
$show = function ($value) { echo $value === false ? "nothing" : json_encode($value), "\n"; };

foreach (["one", "two", "three"] as $value) { $show($client->set("jobs", $value)); }
$show($client->get("jobs"));
$show($client->get("jobs/open"));
$show($client->get("jobs/abort"));
$show($client->get("jobs/open/t=100"));
$show($client->get("jobs/close/open"));
$show($client->get("jobs/close"));
$show($client->get("jobs/t=50"));
foreach ([42, 2.5, true, ["answer" => [42]]] as $value) { $client->set("jobs", $value); $show($client->get("jobs")); }
$client->set("jobs", "last");
$show($client->add("jobs", "refused"));
$show($client->get("jobs"));
$show($client->delete("jobs"));
$show($client->delete("jobs"));
