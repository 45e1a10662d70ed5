# Cache::Memcached or Cache::Memcached::Fast, given by name: puts, takes, reads reliably, and says what it got.
use strict;
use warnings;
my ($class, $port) = @ARGV;
eval "require $class" or die $@;
my $client = $class->new({ servers => ["127.0.0.1:$port"] });
sub show { print defined $_[0] ? $_[0] : "nothing", "\n" }

show($client->set("jobs", $_)) for ("one", "two", "three");
show($client->get("jobs"));
show($client->get("jobs/open"));
show($client->get("jobs/abort"));
show($client->get("jobs/open/t=100"));
show($client->get("jobs/close/open"));
show($client->get("jobs/close"));
show($client->get("jobs/t=50"));
$client->set("jobs", { answer => [42] });
show($client->get("jobs")->{answer}[0]);
$client->set("jobs", "last");
show($client->add("jobs", "refused") ? "added" : "refused");
show($client->get("jobs"));
show($client->delete("jobs") ? "deleted" : "missing");
