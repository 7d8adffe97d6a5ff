paddle pserver --port=7164 --ports_num=1 --num_gradient_servers=2 --nics=eth0 &
paddle train --config=trainer_config.py --local=0 --pservers=10.0.0.1,10.0.0.2 --port=7164 --ports_num=1 --trainer_id=0 --num_gradient_servers=2
